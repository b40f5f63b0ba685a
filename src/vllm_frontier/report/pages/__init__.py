"""Pages of reports: templates for HTML and Markdown, and what fills them."""
