"use strict";
// Tables: heading buttons sort them, words and conditions filter them.
const tables = (() => {
  const CONDITION = /^([^\s<>=!]+?)(<=|>=|!=|=|<|>)(.*)$/;

  const textOf = (cell) => (cell.dataset.v ?? cell.textContent).trim();

  const asNumber = (text) => (text === "" || text === "None" ? NaN : Number(text));

  const compare = (left, right) => {
    const [a, b] = [asNumber(left), asNumber(right)];
    if (!Number.isNaN(a) && !Number.isNaN(b)) return a - b;
    if (Number.isNaN(a) !== Number.isNaN(b)) return Number.isNaN(a) ? 1 : -1;
    return left.localeCompare(right, undefined, { numeric: true });
  };

  const sort = (table, heading) => {
    const column = [...heading.parentNode.children].indexOf(heading);
    const direction = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of heading.parentNode.children) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    const body = table.tBodies[0];
    const known = (row) => !["", "None"].includes(textOf(row.cells[column]));
    const rows = [...body.rows].sort(
      (a, b) =>
        known(b) - known(a) ||
        direction * compare(textOf(a.cells[column]), textOf(b.cells[column])),
    );
    body.append(...rows);
  };

  // Returns the conditions on a row, or an error message.
  const parse = (text, keys) => {
    const tests = [];
    for (const word of text.trim().split(/\s+/).filter(Boolean)) {
      const match = CONDITION.exec(word);
      if (!match) {
        tests.push((row) => row.textContent.toLowerCase().includes(word.toLowerCase()));
        continue;
      }
      const [, name, operator, value] = match;
      const column = keys.findIndex((key) => key.toLowerCase() === name.toLowerCase());
      if (column < 0) return `no column ${name}; columns: ${keys.join(", ")}`;
      tests.push((row) => {
        const held = textOf(row.cells[column]);
        const comparison = compare(held, value);
        const isKnown = held !== "" && held !== "None";
        if (operator === "=") return comparison === 0;
        if (operator === "!=") return comparison !== 0;
        if (operator === "<") return isKnown && comparison < 0;
        if (operator === "<=") return isKnown && comparison <= 0;
        if (operator === ">") return isKnown && comparison > 0;
        return isKnown && comparison >= 0;
      });
    }
    return tests;
  };

  const filter = (form) => {
    const table = document.getElementById(form.dataset.table);
    const output = form.querySelector("output");
    const input = form.querySelector("input");
    const keys = [...table.tHead.rows[0].cells].map((cell) => cell.dataset.key);
    const tests = parse(input.value, keys);
    const isWrong = typeof tests === "string";
    input.setAttribute("aria-invalid", String(isWrong));
    const rows = [...table.tBodies[0].rows];
    let shown = 0;
    for (const row of rows) {
      row.hidden = !isWrong && !tests.every((test) => test(row));
      shown += !row.hidden;
    }
    mark(form.closest(".page"));
    if (isWrong) {
      output.textContent = tests;
      return;
    }
    const noun = rows.length === 1 ? "variant" : "variants";
    output.textContent =
      shown === rows.length ? `${shown} ${noun}` : `${shown} of ${rows.length} ${noun}`;
  };

  // Dims the dots of rows that a filter hides.
  const mark = (page) => {
    const hidden = new Set();
    for (const row of page.querySelectorAll("tr[data-slug][hidden]")) hidden.add(row.dataset.slug);
    for (const dot of page.querySelectorAll(".charts a.dot")) {
      dot.classList.toggle("off", hidden.has(dot.getAttribute("href").slice(1)));
    }
  };

  const drawCharts = async (page) => {
    const place = page.querySelector(".charts");
    if (!place) return;
    const axis = page.querySelector("select[data-charts]");
    const drawings = await blocks.json(place.dataset.block);
    const chosen = drawings[axis ? axis.value : ""] ?? [];
    place.innerHTML = chosen.map((drawing) => `<figure>${drawing}</figure>`).join("");
    mark(page);
  };

  const prepare = (page) => {
    for (const table of page.querySelectorAll("table.sortable")) {
      for (const button of table.querySelectorAll("thead button")) {
        button.addEventListener("click", () => sort(table, button.parentNode));
      }
    }
    for (const form of page.querySelectorAll("form.filter")) {
      form.addEventListener("submit", (event) => event.preventDefault());
      form.addEventListener("input", () => filter(form));
    }
    for (const row of page.querySelectorAll("tr[data-slug]")) {
      row.addEventListener("click", (event) => {
        const isPlain = !event.target.closest("a") && !String(getSelection());
        if (isPlain) location.hash = row.dataset.slug;
      });
    }
    page
      .querySelector("select[data-charts]")
      ?.addEventListener("change", () => drawCharts(page));
    return drawCharts(page);
  };

  return { prepare };
})();
