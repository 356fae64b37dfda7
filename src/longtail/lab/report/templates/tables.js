"use strict";
// Tables are whole without this: it sorts, filters and switches what the page already holds.
(() => {
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));

  function value(row, column, numeric) {
    const text = row.cells[column].dataset.value;
    return text === undefined ? null : numeric ? Number(text) : text;
  }

  function sort(table, column) {
    const header = table.tHead.rows[0].cells[column];
    const order = header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    for (const cell of table.tHead.rows[0].cells) cell.setAttribute("aria-sort", cell === header ? order : "none");
    const sign = order === "ascending" ? 1 : -1;
    const numeric = header.classList.contains("number");
    const rows = [...table.tBodies[0].rows].map((row) => [value(row, column, numeric), row]);
    // What is missing is last in either order.
    rows.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : sign * compare(a, b)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      cell.querySelector("button").addEventListener("click", () => sort(table, column));
    });
  }

  const form = document.getElementById("filters");
  if (!form) return;
  const views = { settings: "view-settings", each: "view-each" };

  function filter() {
    const text = document.getElementById("find").value.trim().toLowerCase();
    const data = document.getElementById("find-data").value;
    const loss = document.getElementById("find-loss").value;
    const view = form.elements.view.value;
    for (const [name, id] of Object.entries(views)) document.getElementById(id).hidden = name !== view;
    const words = text.split(/\s+/);
    const rows = [...document.querySelectorAll("#settings tbody tr, #each tbody tr")];
    for (const row of rows) {
      const content = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase() + " " + row.dataset.data.toLowerCase();
      const fits = (!data || row.dataset.data === data) && (!loss || row.dataset.loss === loss);
      row.hidden = !fits || !words.every((word) => content.includes(word));
    }
    const shown = rows.filter((row) => row.closest("table").id === view);
    const kind = view === "each" ? "runs" : "settings";
    document.getElementById("found").textContent = `${shown.filter((row) => !row.hidden).length} of ${shown.length} ${kind}`;
  }

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();
})();
