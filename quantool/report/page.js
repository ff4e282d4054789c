// Sorting and filtering of the long tables. Everything is in the page without it.
"use strict";
(() => {
  const numberOf = (cell) => {
    const text = cell.textContent.trim();
    if (text === "exact") return Infinity;
    const value = parseFloat(text.replace(/^(under|over) /, "").replaceAll(",", ""));
    return Number.isNaN(value) ? -Infinity : value;
  };

  const sort = (table, column, isNumber, header) => {
    const up = header.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = table.tBodies[0];
    const keyed = Array.from(body.rows, (row) => {
      const cell = row.cells[column];
      return [isNumber ? numberOf(cell) : cell.textContent, row];
    });
    const compare = isNumber ? (a, b) => (a === b ? 0 : a < b ? -1 : 1) : new Intl.Collator("en", { numeric: true }).compare;
    keyed.sort((a, b) => (up ? compare(a[0], b[0]) : compare(b[0], a[0])));
    body.replaceChildren(...keyed.map((pair) => pair[1]));
  };

  const addSorting = (table) => {
    Array.from(table.tHead.rows[0].cells).forEach((header, column) => {
      if (header.classList.contains("figure")) return;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = header.textContent;
      header.replaceChildren(button);
      button.addEventListener("click", () => sort(table, column, header.classList.contains("number"), header));
    });
  };

  const addFilter = (table) => {
    const rows = Array.from(table.tBodies[0].rows);
    if (rows.length < 8) return;
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const box = document.createElement("div");
    const label = document.createElement("label");
    const input = document.createElement("input");
    const told = document.createElement("span");
    box.className = "filter";
    input.type = "search";
    label.append("Filter ", input);
    told.setAttribute("role", "status");
    box.append(label, told);
    table.closest(".wide").before(box);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, index) => {
        row.hidden = !words.every((word) => texts[index].includes(word));
        shown += row.hidden ? 0 : 1;
      });
      told.textContent = words.length ? `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")}` : "";
    });
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    addSorting(table);
    addFilter(table);
  }
  // On paper nothing can be opened, so what is short is printed open.
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details")) part.open ||= part.querySelectorAll("tr, li").length < 200;
  });
})();
