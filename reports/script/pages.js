"use strict";
// Pages: the URL fragment selects one; a variant's page is unpacked when it is opened.
{
  const main = document.getElementById("content");
  const jump = document.getElementById("jump");
  const themes = ["system", "light", "dark"];
  let shown = document.getElementById("overview");

  const unpacked = async (name) => {
    const section = make("section", { className: "page variant", id: name });
    section.innerHTML = await blocks.get(`page-${name}`);
    main.append(section);
    return section;
  };

  const missing = (name) => {
    const link = make("a", { href: "#overview", textContent: "Back to the overview" });
    const text = make("p", { className: "note" }, `There is no page ${name} here. `, link);
    const section = make("section", { className: "page", id: name }, make("h1", { textContent: "Not in this report", tabIndex: -1 }), text);
    main.append(section);
    return section;
  };

  const found = new Map();
  const find = (name) => {
    const page = document.getElementById(name);
    if (page) return page.closest(".page");
    if (!found.has(name)) found.set(name, unpacked(name).catch(() => missing(name)));
    return found.get(name);
  };

  const draw = async (page) => {
    await tables.prepare(page);
    await code.draw(page);
  };

  const drawn = new WeakMap();
  const prepare = (page) => {
    if (!drawn.has(page)) drawn.set(page, draw(page));
    return drawn.get(page);
  };

  // A "%" without two hex digits is a literal "%".
  const decoded = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };

  const wanted = () => decoded(location.hash.slice(1)) || "overview";

  const open = async () => {
    const name = wanted();
    if (name === "content") return;
    const page = await find(name);
    if (name !== wanted()) return; // another page was opened meanwhile
    const isNew = page !== shown;
    shown.classList.remove("open");
    page.classList.add("open");
    shown = page;
    const heading = page.querySelector("h1");
    document.title = `${heading.textContent} · pallasc report`;
    jump.value = [...jump.options].some((each) => each.value === page.id)
      ? page.id
      : page.querySelector(".crumbs a:nth-of-type(2)")?.hash.slice(1) ?? "overview";
    if (isNew) {
      scrollTo(0, 0);
      heading.focus({ preventScroll: true });
    }
    document.body.dataset.page = page.id;
    await prepare(page);
    page.dataset.ready = "";
  };

  const chooseTheme = (theme) => {
    document.documentElement.style.colorScheme = theme === "system" ? "" : theme;
    document.querySelector("#theme span").textContent = theme;
    try {
      localStorage.setItem("pallasc-theme", theme);
    } catch {
      // browsers may deny storage to local files
    }
  };

  const button = document.getElementById("theme");
  button.querySelector("span").textContent = document.documentElement.style.colorScheme || "system";
  button.addEventListener("click", () => {
    const now = themes.indexOf(button.querySelector("span").textContent);
    chooseTheme(themes[(now + 1) % themes.length]);
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  jump.addEventListener("change", () => {
    location.hash = jump.value;
  });
  addEventListener("hashchange", open);
  open();
}
