"use strict";
// Runs before anything is drawn: the theme of the last visit, and the class that hides other pages.
{
  const root = document.documentElement;
  root.classList.add("js");
  let theme = "system";
  try {
    theme = localStorage.getItem("pallasc-theme") || theme;
  } catch {
    // a browser may refuse files a storage
  }
  if (theme === "light" || theme === "dark") root.style.colorScheme = theme;
}
