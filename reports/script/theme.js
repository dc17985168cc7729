"use strict";
// Runs before the first paint: sets the last visit's theme, and the class that hides other pages.
{
  const root = document.documentElement;
  root.classList.add("js");
  let theme = "system";
  try {
    theme = localStorage.getItem("pallasc-theme") || theme;
  } catch {
    // browsers may deny storage to local files
  }
  if (theme === "light" || theme === "dark") root.style.colorScheme = theme;
}
