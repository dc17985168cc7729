"use strict";
// Source, PTX and SASS side by side: the lines that correspond to a line are marked in the others.
// reports/variant.py documents the format of the data.
const code = (() => {
  const CHUNK = 200;

  class Pane {
    constructor(view, name, title) {
      this.view = view;
      this.rows = [];
      this.active = -1;
      this.marked = [];
      this.list = make("div", { className: `lines ${name}`, tabIndex: 0 });
      this.list.setAttribute("role", "listbox");
      this.list.setAttribute("aria-label", title);
      this.element = make("div", { className: "pane" }, make("h3", { textContent: title }), this.list);
      this.prefix = `${view.id}-${name}`;
      this.list.addEventListener("pointerover", (event) => this.#pointed(event, view.point));
      this.list.addEventListener("pointerleave", () => view.leave());
      this.list.addEventListener("click", (event) => this.#pointed(event, view.pin));
      this.list.addEventListener("keydown", (event) => this.#typed(event));
    }

    add(number, text, className = "") {
      const at = this.rows.length;
      if (at % CHUNK === 0) {
        this.chunk = make("div", { className: "chunk" });
        this.list.append(this.chunk);
      }
      const row = make("div", { className: `line ${className}`, id: `${this.prefix}-${at}` });
      row.setAttribute("role", "option");
      row.dataset.at = at;
      row.append(
        make("span", { className: "number", textContent: number }),
        make("span", { className: "text", textContent: text }),
      );
      this.chunk.append(row);
      this.rows.push(row);
      return row;
    }

    // Marks rows by number.
    mark(places, name) {
      for (const row of this.marked) row.classList.remove("linked");
      this.marked = places.map((at) => this.rows[at]).filter(Boolean);
      for (const row of this.marked) row.classList.add(name);
    }

    reveal() {
      const [first] = this.marked;
      if (!first) return;
      const box = this.list.getBoundingClientRect();
      const place = first.getBoundingClientRect();
      if (place.top < box.top || place.bottom > box.bottom) {
        this.list.scrollTop += place.top - box.top - box.height / 3;
      }
    }

    // Makes a row the keyboard's current row.
    activate(at) {
      this.rows[this.active]?.classList.remove("active");
      this.active = at;
      const row = this.rows[at];
      row.classList.add("active");
      this.list.setAttribute("aria-activedescendant", row.id);
      return row;
    }

    move(to) {
      if (!this.rows.length) return;
      const at = Math.max(0, Math.min(this.rows.length - 1, to));
      this.activate(at).scrollIntoView({ block: "nearest" });
      this.view.point(this, at);
    }

    #pointed(event, act) {
      const row = event.target.closest(".line");
      if (row) act(this, Number(row.dataset.at));
    }

    #typed(event) {
      const page = Math.max(1, Math.floor(this.list.clientHeight / 20) - 2);
      const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
      if (event.key in steps) this.move(this.active + steps[event.key]);
      else if (event.key === "Home") this.move(0);
      else if (event.key === "End") this.move(this.rows.length - 1);
      else if (event.key === "Enter" || event.key === " ") this.view.pin(this, this.active);
      else if (event.key === "Escape") this.view.release();
      else return;
      event.preventDefault();
    }
  }

  class View {
    constructor(section, id) {
      this.id = id;
      this.data = JSON.parse(section.dataset.code);
      this.panes = {};
      this.pinned = false;
      this.place = section.querySelector(".panes");
      // These are passed as plain functions.
      this.point = this.point.bind(this);
      this.pin = this.pin.bind(this);
    }

    async draw() {
      const { data } = this;
      const [ptx, sass, lines] = await Promise.all([
        data.ptx && blocks.get(data.ptx),
        data.sass && blocks.json(data.sass),
        data.lines && blocks.json(data.lines),
      ]);
      this.sass = sass;
      this.stackOf = lines ? lines.ptx : [];
      this.stacks = lines ? lines.stacks : [];
      await this.#drawSource();
      if (ptx) this.#drawPtx(ptx);
      if (sass) this.#drawSass(sass);
      this.#index();
      const panes = Object.values(this.panes);
      this.place.style.setProperty("--panes", panes.length);
      this.place.append(...panes.map((pane) => pane.element));
    }

    async #drawSource() {
      this.sourceRow = new Map();
      const used = new Set(this.stacks.flat().map(([file]) => file));
      for (const [file, source] of this.data.sources.entries()) {
        if (!used.has(file)) continue;
        this.panes.source ??= new Pane(this, "source", "Source");
        const pane = this.panes.source;
        pane.add("", source.name, "file");
        let before = null;
        for (const [number, text] of await blocks.json(source.block)) {
          if (before !== null && number !== before + 1) pane.add("⋮", "", "gap");
          this.sourceRow.set(`${file}:${number}`, pane.rows.length);
          pane.add(number, text);
          before = number;
        }
      }
    }

    #drawPtx(ptx) {
      const pane = (this.panes.ptx = new Pane(this, "ptx", "PTX"));
      ptx.split("\n").forEach((text, at) => {
        pane.add(at + 1, text, /^\s*(\/\/|\.loc|\.file)/.test(text) ? "quiet" : "");
      });
    }

    #drawSass(sass) {
      const pane = (this.panes.sass = new Pane(this, "sass", "SASS"));
      const most = sass.live.reduce((least, live) => Math.max(least, live ?? 0), 0);
      this.sassRow = [];
      sass.text.forEach((text, at) => {
        if (at in sass.labels) pane.add("", `${sass.labels[at]}:`, "label");
        this.sassRow.push(pane.rows.length);
        const row = pane.add((at * 16).toString(16).padStart(4, "0"), text, sass.kinds[sass.kind[at]]);
        row.dataset.instruction = at;
        const live = sass.live[at];
        if (live !== null && most) {
          const graph = make("span", { className: "live", title: `${live} live registers` });
          graph.style.setProperty("--live", live / most);
          graph.dataset.live = live;
          row.prepend(graph);
        }
      });
      if (most) {
        pane.element.querySelector("h3").append(
          make("small", { textContent: `live registers at the left, ${most} at most` }),
        );
      }
    }

    // Instructions by PTX line, and PTX lines by source row.
    #index() {
      this.byPtx = new Map();
      for (const [at, line] of (this.sass ? this.sass.ptx : []).entries()) {
        if (line) this.byPtx.set(line, [...(this.byPtx.get(line) ?? []), at]);
      }
      this.bySource = new Map();
      for (const [at, stack] of this.stackOf.entries()) {
        for (const row of this.#rowsOfStack(stack)) {
          this.bySource.set(row, [...(this.bySource.get(row) ?? []), at + 1]);
        }
      }
    }

    #rowsOfStack(number) {
      const rows = (this.stacks[number] ?? []).map(([file, line]) => this.sourceRow.get(`${file}:${line}`));
      return [...new Set(rows.filter((row) => row !== undefined))];
    }

    // Returns the corresponding rows, by pane.
    #linked(pane, at) {
      const { source, ptx, sass } = this.panes;
      let lines = [];
      let instructions = [];
      if (pane === sass) {
        const number = sass.rows[at].dataset.instruction;
        instructions = number === undefined ? [] : [Number(number)];
        lines = instructions.map((each) => this.sass.ptx[each]).filter(Boolean);
      } else {
        lines = pane === ptx ? [at + 1] : this.bySource.get(at) ?? [];
        instructions = lines.flatMap((line) => this.byPtx.get(line) ?? []);
      }
      const rows =
        pane === source ? [at] : lines.flatMap((line) => this.#rowsOfStack(this.stackOf[line - 1]));
      const isOfFile = pane === source && !lines.length;
      return {
        source: isOfFile ? [] : [...new Set(rows)],
        ptx: lines.map((line) => line - 1),
        sass: instructions.map((each) => this.sassRow[each]),
      };
    }

    #mark(pane, at) {
      const linked = this.#linked(pane, at);
      for (const [name, each] of Object.entries(this.panes)) each.mark(linked[name], "linked");
    }

    point(pane, at) {
      if (!this.pinned) this.#mark(pane, at);
    }

    pin(pane, at) {
      if (at < 0) return;
      pane.activate(at);
      this.#mark(pane, at);
      this.pinned = true;
      this.place.classList.add("pinned");
      for (const other of Object.values(this.panes)) if (other !== pane) other.reveal();
      const counts = Object.values(this.panes).map(
        (each) => `${each.marked.length} of ${each.list.getAttribute("aria-label")}`,
      );
      document.getElementById("say").textContent = `Linked lines: ${counts.join(", ")}`;
    }

    release() {
      this.pinned = false;
      this.place.classList.remove("pinned");
      this.leave();
    }

    leave() {
      if (this.pinned) return;
      for (const pane of Object.values(this.panes)) pane.mark([], "linked");
    }
  }

  let views = 0;
  const draw = async (page) => {
    for (const section of page.querySelectorAll("section.code")) {
      views += 1;
      await new View(section, `code-${views}`).draw();
    }
  };
  return { draw };
})();
