// Sorts tables by a click, and shows a variant wherever it is. Without it the page is complete.

// ---- sorting: numbers largest first, then smallest first, then as it was; names the other way
// round; bounds stay below their line

function numberIn(text) {
  const found = text.replaceAll("−", "-").replaceAll(",", "").match(/^[-+]?\d+(\.\d+)?/);
  return found ? Number(found[0]) : null;
}

function compare(left, right) {
  const [a, b] = [numberIn(left), numberIn(right)];
  if (a !== null && b !== null) return a - b;
  return left.localeCompare(right, "en", { numeric: true });
}

function sort(table, place, direction) {
  const body = table.tBodies[0];
  const groups = [[]];
  for (const row of table.asItWas) {
    if (row.cells[0].classList.contains("section")) groups.push([row], []);
    else groups.at(-1).push(row);
  }
  const text = (row) => row.cells[place].textContent.trim();
  const isNothing = (row) => Number(["–", ""].includes(text(row)));
  for (const group of groups) {
    if (direction) {
      group.sort((a, b) =>
        isNothing(a) - isNothing(b) || direction * compare(text(a), text(b)));
    }
    body.append(...group);
  }
}

for (const table of document.querySelectorAll("table.numbers")) {
  const heads = [...table.tHead.rows[0].cells];
  table.asItWas = [...table.tBodies[0].rows];
  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const [first, second] = place ? ["descending", "ascending"] : ["ascending", "descending"];
      const next = { [first]: second, [second]: "" }[head.ariaSort] ?? first;
      for (const other of heads) other.removeAttribute("aria-sort");
      if (next) head.setAttribute("aria-sort", next);
      sort(table, place, { ascending: 1, descending: -1 }[next] ?? 0);
    });
  });
}

// ---- choosing a variant, by its name or by its line

const choice = document.querySelector("#choice");
let chosen = null;

function choose(mark, name) {
  chosen = mark === chosen ? null : mark;
  for (const element of document.querySelectorAll("[data-variant]")) {
    const is = element.dataset.variant === chosen;
    element.classList.toggle("chosen", is);
    if (element.role === "button") element.ariaPressed = String(is);
  }
  for (const figure of document.querySelectorAll("figure")) {
    const svg = figure.querySelector("svg .chosen");
    figure.classList.toggle("choosing", chosen !== null && svg !== null);
  }
  choice.hidden = chosen === null;
  choice.textContent = `${name} ✕`;
}

for (const name of document.querySelectorAll("span.variant")) {
  Object.assign(name, { role: "button", tabIndex: 0, ariaPressed: "false" });
  name.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      name.click();
    }
  });
}
document.addEventListener("click", (event) => {
  const found = event.target.closest("span.variant, svg .variant");
  if (!found) return;
  event.preventDefault(); // the name in a summary does not open it
  const title = found.querySelector("title") ?? found;
  choose(found.dataset.variant, title.textContent);
});
choice.addEventListener("click", () => choose(null, ""));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") choose(null, "");
});
