#!/bin/sh
# See that there is a Chromium: tests look at reports in a real browser.
set -eu
command -v chromium >/dev/null || command -v google-chrome >/dev/null || {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        printf '%s\n' "browser: installing chromium"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null
    else
        printf '%s\n' "browser: the tests need Chromium; install it first, such as: sudo apt-get install chromium" >&2
        exit 2
    fi
}
