"""The page in a real browser: the system's Chromium, without a window.

All of these are slow, and are skipped where Chromium is not installed. The page's policy forbids
strings that become code, so tests wait with locators and not with `wait_for_function`.
"""
