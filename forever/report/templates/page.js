// Sorts a table by a click on a column's head, numbers largest first, and by a second click the
// other way round. Rows below the line "bounds" stay below it.
function key(row, column) {
  const text = row.cells[column].textContent.trim();
  const number = parseFloat(text.replaceAll("−", "-").replaceAll(",", ""));
  return Number.isNaN(number) ? text : -number;
}

function compare(a, b) {
  if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
  return typeof a === "number" ? -1 : 1;
}

for (const head of document.querySelectorAll("table.numbers th")) {
  head.addEventListener("click", () => {
    const column = head.cellIndex, body = head.closest("table").tBodies[0];
    const direction = head.ariaSort === "descending" ? -1 : 1;
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.ariaSort = direction === 1 ? "descending" : "ascending";
    const rows = [...body.rows], line = rows.findIndex((row) => row.classList.contains("section"));
    const groups = line < 0 ? [rows] : [rows.slice(0, line), [rows[line]], rows.slice(line + 1)];
    for (const group of groups) {
      body.append(...group.sort((a, b) => direction * compare(key(a, column), key(b, column))));
    }
  });
}
