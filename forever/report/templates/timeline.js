// Puts a chart that can be zoomed and read off in the place of each timeline, drawn by Vega-Lite
// from the numbers behind the figure. It is drawn when it is first seen.

const EVENTS = ["replay", "consolidation"];
const X = { field: "place", type: "quantitative", title: null, scale: { nice: false, zero: false },
  axis: { grid: false, format: "d" } };
const KEY = [["move", "Δ: distance that a task update moves"], ["ink", "μ: its moving average"],
  ["accent", "clock"], ["replay", "replay"], ["consolidation", "consolidation"]];

const TITLES = { task: "task", place: "update of the run", step: "update of the task",
  update_norm: "Δ", mu: "μ", loss: "loss", days: "clock", next_day: "next day" };

// A file of comma-separated values, in which a cell in quotes may hold anything.
function parse(text) {
  const rows = [[]];
  for (const [, comma, quoted, plain] of text.matchAll(/(^|,|\n)(?:"((?:[^"]|"")*)"|([^,\n]*))/g)) {
    if (comma === "\n") rows.push([]);
    rows.at(-1).push(quoted === undefined ? plain : quoted.replaceAll('""', '"'));
  }
  const [head, ...lines] = rows.filter((row) => row.length > 1);
  return lines.map((line) => Object.fromEntries(line.map((cell, n) => {
    const isText = head[n] === "task" || head[n] === "kind";
    return [head[n], isText ? cell : cell === "" ? null : Number(cell)];
  })));
}

// The rows that have a number; the clock has none before the warm-up is over.
function measured(rows, field) {
  return rows.filter((row) => row[field] !== null && (field !== "days" || row.days > 0));
}

// Rows that follow each other and agree in some fields, from their first to their last place.
function spans(rows, fields) {
  const found = [];
  for (const row of rows) {
    const last = found.at(-1);
    if (last && fields.every((field) => last[field] === row[field])) last.last = row.place + 0.5;
    else found.push({ ...row, first: row.place - 0.5, last: row.place + 0.5 });
  }
  for (const span of found) span.updates = span.last - span.first;
  return found;
}

// A row as people read it.
function readable(row) {
  const shown = {};
  for (const [field, title] of Object.entries(TITLES)) {
    const value = row[field];
    if (value !== null) shown[title] = typeof value === "number" ? Number(value.toPrecision(4)) : value;
  }
  return { ...shown, [TITLES.place]: row.place };
}

// A colour of the page as it is now.
function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const shown = getComputedStyle(probe).color;
  probe.remove();
  return shown;
}

function specification(rows, width) {
  const tasks = spans(rows, ["task"]);
  const whole = { first: tasks[0].first, last: tasks.at(-1).last };
  const replays = spans(rows, ["kind", "task", "step"]).filter((span) => span.kind !== "task");
  const updates = rows.filter((row) => row.kind === "task");
  const hasClock = updates.some((row) => row.days > 0);
  const zoomed = { ...X, scale: { ...X.scale, domain: { param: "zoom" } } };
  const ofReplay = Object.entries({ kind: "kind", task: "task", step: "at update of the task",
    days: "at day", updates: "updates" }).map(([field, title]) => ({ field, title, type: "nominal" }));
  const rect = (values, x, look, tip) => ({
    data: { values }, mark: { type: "rect", clip: true, ...look },
    encoding: { x: { ...x, field: "first" }, x2: { field: "last" }, ...tip },
  });
  const behind = (x) => [
    rect([whole], x, { opacity: 0 }, {}), // so that all panels have one range
    rect(tasks.filter((_, n) => n % 2), x, { color: colour("ground") }, {}),
    ...EVENTS.map((kind) => rect(replays.filter((span) => span.kind === kind), x,
      { color: colour(kind), opacity: 0.45 }, { tooltip: ofReplay })),
  ];
  // A line for each task. The clock stands still while memory is replayed.
  const line = (field, x, name, title, y) => ({
    data: { values: measured(field === "days" ? rows : updates, field) },
    mark: { type: "line", clip: true, strokeWidth: 1.2, color: colour(name) },
    encoding: { x, y: { field, type: "quantitative", title, ...y }, detail: { field: "task" } },
  });
  const reader = (field, param) => ({ // what is nearest to the pointer can be read
    data: { values: measured(updates, field).map(readable) },
    params: [{ name: param, select: { type: "point", on: "pointerover", clear: "pointerout",
      nearest: true, encodings: ["x"] } }],
    mark: { type: "point", filled: true, size: 45, clip: true, color: colour("ink"),
      tooltip: { content: "data" } },
    encoding: { x: { ...zoomed, field: TITLES.place },
      y: { field: TITLES[field], type: "quantitative" },
      opacity: { condition: { param, empty: false, value: 1 }, value: 0 } },
  });
  const names = {
    data: { values: tasks },
    mark: { type: "text", align: "left", baseline: "bottom", y: -4, clip: false, fontSize: 11,
      limit: Math.max(28, (width - 60) / tasks.length - 4), color: colour("soft") },
    encoding: { x: { ...zoomed, field: "first" }, text: { field: "task" },
      tooltip: [{ field: "task", type: "nominal" }] },
  };
  const panels = [{
    width: "container", height: 150,
    layer: [...behind(zoomed), names, line("update_norm", zoomed, "move", "Δ, μ", {}),
      line("mu", zoomed, "ink", "Δ, μ", {}), reader("update_norm", "move")],
  }];
  if (hasClock) {
    const happened = replays.filter((span) => span.days > 0);
    const last = Math.max(...updates.map((row) => row.days));
    const days = [...new Set(updates.map((row) => row.next_day))].filter((day) => day > 0 && day <= last);
    const scale = { type: "symlog", constant: 1, domain: [0, 1.1 * last] };
    const y = { scale, axis: { tickCount: 4, labelExpr: "'' + datum.value" } };
    if (days.length && days.length <= 12) y.axis.values = [0, ...days];
    panels.push({
      width: "container", height: 170,
      layer: [...behind(zoomed), line("days", zoomed, "accent", "clock (days)", y),
        ...EVENTS.map((kind) => ({
          data: { values: happened.filter((span) => span.kind === kind) },
          mark: { type: "point", filled: true, size: 40, clip: true, color: colour(kind),
            shape: kind === "replay" ? "circle" : "diamond", opacity: 1 },
          encoding: { x: zoomed, y: { field: "days", type: "quantitative", ...y }, tooltip: ofReplay },
        })), reader("days", "clock")],
    });
  }
  panels.push({
    width: "container", height: 44,
    layer: [...behind(X), {
      ...line("update_norm", { ...X, title: "update of the run, replay included" }, "move", null,
        { axis: null }),
      params: [{ name: "zoom", select: { type: "interval", encodings: ["x"],
        mark: { fill: colour("accent"), fillOpacity: 0.15, stroke: colour("accent") } } }],
    }],
  });
  for (const panel of panels) panel.layer = panel.layer.filter((layer) => layer.data.values.length);
  return { vconcat: panels, spacing: 14, background: null, config: config() };
}

function config() {
  const [ink, soft, line] = ["ink", "soft", "line"].map(colour);
  const axis = { labelColor: soft, titleColor: ink, domainColor: line, tickColor: line,
    gridColor: colour("grid"), titleFontWeight: "normal", labelOverlap: true };
  return { axis, view: { stroke: null }, font: "system-ui, sans-serif" };
}

// What the colours are, and what a hand can do.
function explain(chart) {
  const key = document.createElement("p");
  key.className = "key note";
  for (const [name, text] of KEY) {
    const swatch = document.createElement("i");
    swatch.style.background = `var(--${name})`;
    key.append(swatch, `${text} `);
  }
  key.append("· Drag over the strip at the bottom to zoom, and move what is chosen; double-click it "
    + "to see all. Point at a line or a replay to read it off.");
  chart.after(key);
}

async function draw(figure) {
  const chart = figure.querySelector(".chart");
  const address = figure.querySelector("a[download]").href;
  const rows = parse(decodeURIComponent(address.slice(address.indexOf(",") + 1)));
  if (!rows.length) return;
  if (!figure.classList.contains("drawn")) explain(chart);
  figure.classList.add("drawn"); // so that the chart has a width
  await vegaEmbed(chart, specification(rows, chart.clientWidth),
    { ast: true, actions: false, renderer: "svg" });
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting && !entry.target.classList.contains("drawn")) draw(entry.target);
  }
}, { rootMargin: "200px" });
for (const figure of document.querySelectorAll("figure.timeline")) seen.observe(figure);

function redraw() {
  document.querySelectorAll("figure.drawn").forEach(draw);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.querySelector(".scheme").addEventListener("change", redraw);
