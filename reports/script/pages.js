"use strict";
// Pages: the address after # names one; pages of variants are unpacked when they are opened.
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

  const find = async (name) => {
    const page = document.getElementById(name);
    if (page) return page.closest(".page");
    try {
      return await unpacked(name);
    } catch (error) {
      const link = make("a", { href: "#overview", textContent: "Back to the overview" });
      const text = make("p", { className: "note" }, `There is no page ${name} here. `, link);
      const section = make("section", { className: "page", id: name }, make("h1", { textContent: "Not in this report", tabIndex: -1 }), text);
      main.append(section);
      return section;
    }
  };

  const prepared = new WeakSet();
  const prepare = async (page) => {
    if (prepared.has(page)) return;
    prepared.add(page);
    await tables.prepare(page);
    await code.draw(page);
  };

  // A "%" without two digits is no code: it stands for itself.
  const decoded = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };

  const open = async () => {
    const name = decoded(location.hash.slice(1)) || "overview";
    if (name === "content") return;
    const page = await find(name);
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
      // a browser may refuse files a storage
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
