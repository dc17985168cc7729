"use strict";
// Unpacks the compressed texts of the page, see `Blocks` in reports/variant.py.
const blocks = (() => {
  const found = new Map();

  const loaded = () =>
    document.readyState === "loading"
      ? new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve))
      : Promise.resolve();

  const unpack = async (name) => {
    let element = document.getElementById(name);
    if (!element) {
      await loaded();
      element = document.getElementById(name);
    }
    if (!element) throw new Error(`the report has no ${name}`);
    const text = atob(element.textContent);
    const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return new Response(stream).text();
  };

  const get = (name) => {
    if (!found.has(name)) found.set(name, unpack(name));
    return found.get(name);
  };

  return { get, json: async (name) => JSON.parse(await get(name)), loaded };
})();

const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};
