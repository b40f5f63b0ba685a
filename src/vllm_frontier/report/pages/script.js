"use strict";
// Without this script the page is complete; with it marks of pictures can be walked, and lines copied.

(() => {
  const tooltip = document.getElementById("tooltip");

  const show = (mark) => {
    tooltip.textContent = mark.getAttribute("aria-label");
    tooltip.hidden = false;
    const at = mark.getBoundingClientRect();
    const own = tooltip.getBoundingClientRect();
    const gap = 10;
    const room = document.documentElement.clientWidth;
    const left = Math.min(Math.max(gap, at.left + at.width / 2 - own.width / 2), room - own.width - gap);
    const above = at.top - own.height - gap;
    const top = above > 0 ? above : at.bottom + gap;
    tooltip.style.left = `${Math.max(0, left) + window.scrollX}px`;
    tooltip.style.top = `${top + window.scrollY}px`;
  };
  const hide = () => { tooltip.hidden = true; };

  const centre = (mark) => {
    const at = mark.getBoundingClientRect();
    return [at.left + at.width / 2, at.top + at.height / 2];
  };

  // The nearest mark in a direction; what lies aside counts more than what lies far.
  const towards = (marks, from, dx, dy) => {
    const [x, y] = centre(from);
    let best = null;
    let least = Infinity;
    for (const mark of marks) {
      if (mark === from) continue;
      const [ox, oy] = centre(mark);
      const along = (ox - x) * dx + (oy - y) * dy;
      const aside = Math.abs((ox - x) * dy) + Math.abs((oy - y) * dx);
      if (along < 0.5) continue;
      const far = along + 3 * aside;
      if (far < least) { least = far; best = mark; }
    }
    return best;
  };

  const directions = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  const walkable = (panel) => {
    const marks = [...panel.querySelectorAll(".role-mark [aria-label], .role-mark[aria-label]")];
    if (!marks.length) return;
    let current = marks[0];
    for (const mark of marks) {
      mark.setAttribute("tabindex", "-1");
      mark.setAttribute("role", "img");
      mark.removeAttribute("aria-roledescription");
      mark.dataset.mark = "";
    }
    current.setAttribute("tabindex", "0");
    const go = (mark) => {
      if (!mark) return;
      current.setAttribute("tabindex", "-1");
      current = mark;
      current.setAttribute("tabindex", "0");
      current.focus();
    };
    // Out of the picture: the next Tab goes on behind it.
    const leave = () => {
      hide();
      panel.focus({ preventScroll: true });
      current.setAttribute("tabindex", "-1");
    };
    const markOf = (event) => event.target.closest("[data-mark]");

    panel.addEventListener("keydown", (event) => {
      const mark = markOf(event);
      if (!mark || event.altKey || event.ctrlKey || event.metaKey) return;
      const place = marks.indexOf(mark);
      const direction = directions[event.key];
      if (direction) go(towards(marks, mark, ...direction));
      else if (event.key === "Home") go(marks[0]);
      else if (event.key === "End") go(marks[marks.length - 1]);
      else if (event.key === "PageDown") go(marks[place + 1]);
      else if (event.key === "PageUp") go(marks[place - 1]);
      else if (event.key === "Escape") leave();
      else return;
      event.preventDefault();
    });
    panel.addEventListener("focusin", (event) => { if (markOf(event)) show(markOf(event)); });
    panel.addEventListener("focusout", (event) => {
      hide();
      if (event.target === panel) current.setAttribute("tabindex", "0");
    });
    panel.addEventListener("pointerover", (event) => { const mark = markOf(event); if (mark) show(mark); else hide(); });
    panel.addEventListener("pointerleave", hide);
    panel.addEventListener("click", (event) => go(markOf(event)));
    panel.setAttribute("tabindex", "-1");
  };

  for (const panel of document.querySelectorAll(".panel")) walkable(panel);
  for (const help of document.querySelectorAll("[data-with-script]")) help.hidden = false;
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  window.addEventListener("resize", hide);

  // Copying: from a file there is no clipboard interface in some browsers; selecting always works.
  const selected = (code) => {
    const range = document.createRange();
    range.selectNodeContents(code);
    const selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  };
  const say = (button, words) => {
    button.textContent = words;
    window.setTimeout(() => { button.textContent = "Copy"; }, 2500);
  };
  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", async () => {
      const code = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(code.textContent);
        say(button, "Copied");
      } catch {
        selected(code);
        say(button, document.execCommand("copy") ? "Copied" : "Selected");
      }
    });
  }
})();
