"use strict";
// Sorting and filtering only: the page says everything without this script.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, index) => {
    const text = row.cells[index].textContent.trim();
    const number = Number.parseFloat(text.replaceAll(",", ""));
    return { text, number };
  };
  const sort = (index) => {
    const ascending = heads[index].getAttribute("aria-sort") !== "ascending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[index].setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const numeric = heads[index].classList.contains("n");
    const rows = [...body.rows].map((row) => ({ row, key: value(row, index) }));
    rows.sort((a, b) => {
      if (!numeric) return (ascending ? 1 : -1) * a.key.text.localeCompare(b.key.text);
      const absent = Number(Number.isNaN(a.key.number)) - Number(Number.isNaN(b.key.number));
      // Rows without a number stay last in both directions.
      if (absent || Number.isNaN(a.key.number)) return absent;
      return (ascending ? 1 : -1) * (a.key.number - b.key.number);
    });
    body.append(...rows.map((entry) => entry.row));
  };
  heads.forEach((head, index) => {
    head.setAttribute("role", "button");
    head.tabIndex = 0;
    head.addEventListener("click", () => sort(index));
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        sort(index);
      }
    });
  });
}
const filter = document.getElementById("filter");
if (filter) {
  filter.closest(".filter").hidden = false;
  const rows = [...document.querySelectorAll("#numbers tbody tr")];
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
}
