"use strict";
// The selector, what it shows of two methods, and the figures. Tables are whole without this: it sorts them.
(() => {
  const FEW_ROWS = 30;
  const MATRIX = 25;
  const PAIRS = 15;
  const Z = 1.959963984540054;
  const get = (id) => document.getElementById(id);
  const experiments = JSON.parse(get("experiments").textContent);
  const charts = JSON.parse(get("charts").textContent);
  const percent = (value) => (value === null ? "–" : (100 * value).toFixed(1));
  const whole = (value) => (Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(1));

  // ---- sorting ----------------------------------------------------------------------------------------------------

  const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));

  function sort(table, column) {
    const header = table.tHead.rows[0].cells[column];
    const direction = header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    for (const cell of table.tHead.rows[0].cells) cell.setAttribute("aria-sort", cell === header ? direction : "none");
    const sign = direction === "ascending" ? 1 : -1;
    const numeric = header.classList.contains("number");
    const value = (text) => (text === undefined ? null : numeric ? Number(text) : text);
    const rows = [...table.tBodies[0].rows].map((row) => [value(row.cells[column].dataset.value), row]);
    // What is missing is last in either order.
    rows.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : sign * order(a, b)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      cell.querySelector("button").addEventListener("click", () => sort(table, column));
    });
  }

  // ---- figures ----------------------------------------------------------------------------------------------------

  const options = { mode: "vega-lite", renderer: "svg", actions: { export: true, source: false, compiled: false, editor: false } };

  /** All that can be seen, at once: what is not drawn would be missing in print. Their ink is currentColor. */
  async function draw() {
    for (const element of document.querySelectorAll("[data-chart]:empty")) {
      if (element.closest("[hidden]")) continue;
      try {
        await vegaEmbed(element, charts[element.dataset.chart], options);
        element.querySelector("summary")?.setAttribute("aria-label", "Save this figure");
      } catch (error) {
        element.textContent = `This figure could not be drawn: ${error.message}`;
      }
    }
  }

  // ---- elements ---------------------------------------------------------------------------------------------------

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function fill(table, headers, rows) {
    const head = make("tr", {}, ...headers.map(([text, kind]) => make("th", { scope: "col", class: kind }, text)));
    const body = rows.map((cells) => make("tr", {}, ...cells.map((cell, index) => (
      cell instanceof Element ? cell : make(index ? "td" : "th", index ? { class: headers[index][1] } : { scope: "row" }, cell)))));
    get(table).replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
  }

  // ---- metrics of classes -----------------------------------------------------------------------------------------

  /** Wilson's interval at 95%; successes may be a mean over seeds. */
  function wilson(successes, trials) {
    const [share, z] = [successes / trials, Z * Z / trials];
    const radius = Math.sqrt(z * (share * (1 - share) + z / 4));
    return [share + z / 2 - radius, share + z / 2 + radius].map((end) => Math.min(1, Math.max(0, end / (1 + z))));
  }

  /** {value, interval} of a class; F1 is a function of the share of hits among hits, misses and false alarms. */
  function score(method, metric, index) {
    const recall = method.recall[index] ?? null;
    const [tested, predicted] = [method.tested[index] ?? 0, method.predicted[index] ?? 0];
    if (recall === null) return { value: null };
    if (!tested) return { value: metric === "recall" ? recall : null };
    const hits = recall * tested;
    if (metric === "recall") return { value: recall, interval: wilson(hits, tested) };
    if (metric === "precision") return predicted ? { value: hits / predicted, interval: wilson(hits, predicted) } : { value: null };
    const all = tested + predicted - hits;
    return { value: 2 * hits / (tested + predicted), interval: wilson(hits, all).map((share) => 2 * share / (1 + share)) };
  }

  function scoreCell({ value, interval }) {
    const note = interval ? [" ", make("small", {}, `[${interval.map((end) => Math.round(100 * end)).join(", ")}]`)] : [];
    return make("td", { class: "number" }, percent(value), ...note);
  }

  /** Both values on a line from 0 to 100%, with their intervals. */
  function picture(scores, methods) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 324 22");
    svg.setAttribute("aria-hidden", "true");
    const add = (name, attributes) => {
      const node = document.createElementNS(svg.namespaceURI, name);
      for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
      svg.append(node);
    };
    for (const x of [2, 162, 322]) add("line", { x1: x, x2: x, y1: 0, y2: 22, class: "grid" });
    scores.forEach(({ value, interval }, index) => {
      const [y, colour] = [7 + 8 * index, methods[index].colour];
      if (interval) add("line", { x1: 2 + 320 * interval[0], x2: 2 + 320 * interval[1], y1: y, y2: y, stroke: colour, "stroke-width": 2, opacity: 0.55 });
      if (value !== null) add("circle", { cx: 2 + 320 * value, cy: y, r: 3.5, fill: colour });
    });
    return make("td", { class: "picture" }, svg);
  }

  let allClasses = false;

  const dot = (method) => make("span", { class: "dot", style: `background:${method.colour}` });

  function compare(experiment, methods) {
    const [baseline, candidate] = methods;
    const metric = get("metric").value;
    const same = baseline === candidate;
    const known = candidate.recall.length > 0 && baseline.recall.length > 0;
    const [before, after] = methods.map((method) => `${percent(method.accuracy)}%`);
    const difference = experiment.differences[experiment.methods.indexOf(baseline)][experiment.methods.indexOf(candidate)];
    get("compared").replaceChildren("Balanced accuracy: ", dot(baseline), `${baseline.name} ${before}`,
      ...(same ? [] : [", ", dot(candidate), `${candidate.name} ${after}: ${difference}.`]));
    const rows = experiment.classes.map((name, index) => {
      const scores = (same ? [candidate] : methods).map((method) => score(method, metric, index));
      const [low, high] = [scores[0].value, scores.at(-1).value];
      return { name, index, scores, change: low === null || high === null || same ? null : high - low, count: experiment.counts[index] };
    });
    const keys = { rare: (row) => row.count, frequent: (row) => -row.count, gain: (row) => row.change === null ? null : -row.change, loss: (row) => row.change, low: (row) => row.scores.at(-1).value };
    const key = keys[get("order").value];
    rows.sort((a, b) => (key(a) === null || key(b) === null ? (key(a) === null) - (key(b) === null) : key(a) - key(b)));
    const named = (method, role) => [make("span", {}, dot(method), role), "number"];
    const headers = [["class"], ["images: training", "number wide"], ["test", "number wide"], named(baseline, same ? `${metric} %` : "baseline %"),
      ...(same ? [] : [named(candidate, "candidate %"), ["change", "number"]]), ["0 to 100%", "picture"]];
    const cells = (row) => {
      const tested = candidate.tested[row.index];
      const few = tested !== undefined && tested < 10 ? "few" : "";
      const size = (100 * Math.abs(row.change)).toFixed(1);
      const sign = row.change === null ? "–" : size === "0.0" ? size : `${row.change > 0 ? "+" : "−"}${size}`;
      return [
        make("th", { scope: "row" }, row.name, make("small", { class: "narrow" }, ` ${row.count.toLocaleString("en")} training${tested === undefined ? "" : `, ${tested.toLocaleString("en")} test`} images`)),
        make("td", { class: "number wide" }, row.count.toLocaleString("en")),
        make("td", { class: `number wide ${few}` }, tested === undefined ? "–" : tested.toLocaleString("en")),
        ...row.scores.map(scoreCell),
        ...(same ? [] : [make("td", { class: `number ${row.change > 0 ? "better" : row.change < 0 ? "worse" : ""}` }, sign)]),
        picture(row.scores, same ? [candidate] : methods),
      ];
    };
    const shown = allClasses ? rows : rows.slice(0, FEW_ROWS);
    fill("classes", known ? headers : [], known ? shown.map(cells) : []);
    get("classes-unknown").hidden = known;
    get("classes-all").hidden = !known || shown.length === rows.length;
    get("classes-all").textContent = `Show all ${rows.length.toLocaleString("en")} classes`;
  }

  const seeds = (method) => (method.seeds > 1 ? `mean over ${method.seeds} seeds` : "one seed");

  // ---- confusions -------------------------------------------------------------------------------------------------

  function confusions(experiment, method) {
    const { classes, counts } = experiment;
    const there = method.predicted.length > 0;
    for (const id of ["confusions", "confusion-controls"]) get(id).hidden = !there;
    get("matrix").replaceChildren();
    get("pairs").replaceChildren();
    if (!there) {
      get("confusion-about").textContent = "These runs have no confusion matrix: they are from an older version.";
      return;
    }
    // Of many classes, those that are confused most.
    const chosen = new Set();
    for (const [label, predicted] of method.confused) {
      if (chosen.size < MATRIX - 1) chosen.add(label).add(predicted);
    }
    const shown = classes.map((_, index) => index).filter((index) => classes.length <= MATRIX || chosen.has(index));
    shown.sort((a, b) => counts[b] - counts[a]);
    const cells = new Map(method.confused.map(([label, predicted, images]) => [`${label},${predicted}`, images]));
    const rest = shown.length < classes.length ? ` The ${shown.length} most confused of ${classes.length.toLocaleString("en")} classes.` : "";
    const about = `${method.name}, ${seeds(method)}. Rows are the true classes, columns the predicted ones, both from most to fewest training images.${rest}`;
    get("confusion-about").textContent = about;
    const say = (label, predicted, images) => `${classes[label]} → ${classes[predicted]}: ${whole(images)} of ${method.tested[label]} images (${percent(images / method.tested[label])}%)`;
    const head = make("tr", {}, make("td"), ...shown.map((index) => make("th", { scope: "col" }, make("span", {}, classes[index]))));
    const rows = shown.map((label) => make("tr", {}, make("th", { scope: "row" }, classes[label]), ...shown.map((predicted) => {
      const hits = (method.recall[label] ?? 0) * method.tested[label];
      const images = label === predicted ? Math.round(100 * hits) / 100 : cells.get(`${label},${predicted}`) ?? 0;
      if (!images) return make("td");
      const share = Math.round(100 * images / method.tested[label]);
      const kind = `${label === predicted ? "right" : "wrong"}${share > 55 ? " strong" : ""}`;
      return make("td", { class: kind, style: `--share:${Math.max(share, 8)}%`, title: say(label, predicted, images) }, whole(images));
    })));
    get("matrix").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
    const pairs = method.confused.slice(0, PAIRS).map(([label, predicted, images]) => [classes[label], make("td", {}, classes[predicted]),
      make("td", { class: "number" }, whole(images), " ", make("small", {}, `${percent(images / method.tested[label])}%`))]);
    fill("pairs", [["true class"], ["predicted as"], ["images", "number"]], pairs);
    if (!pairs.length) get("pairs").replaceChildren(make("caption", {}, "No test image was misclassified."));
  }

  function mistakes(experiment, method) {
    const { classes, counts } = experiment;
    const shown = method.mistakes.slice(0, 24);
    get("mistakes-about").textContent = shown.length
      ? `${method.name}, one seed: the most confident errors of the rarest classes, the rarest class first.`
      : !method.predicted.length ? "These runs have no list of mistakes: they are from an older version."
      : !method.confused.length ? `${method.name} misclassified no test image.`
      : "The thumbnails were left out (--no-images), or the images are no longer where the run read them.";
    get("thumbnails").replaceChildren(...shown.map(([image, label, predicted, confidence]) => make("li", {},
      make("img", { src: image, alt: `A test image of ${classes[label]}`, loading: "eager" }),
      make("span", {}, make("strong", {}, classes[label]), make("small", {}, ` ${counts[label].toLocaleString("en")} training images`)),
      make("span", {}, "predicted ", make("strong", { class: "worse" }, classes[predicted]), ` at ${Math.round(100 * confidence)}%`))));
  }

  // ---- the selector -----------------------------------------------------------------------------------------------

  function show() {
    const experiment = experiments[get("experiment").value];
    const methods = [get("baseline"), get("candidate")].map((select) => experiment.methods[select.value]);
    compare(experiment, methods);
    confusions(experiment, methods[get("confusion-method").value === "candidate" ? 1 : 0]);
    mistakes(experiment, methods[1]);
  }

  function choose() {
    const chosen = get("experiment").value;
    for (const element of document.querySelectorAll("[data-experiment]")) element.hidden = element.dataset.experiment !== chosen;
    const { methods, pair } = experiments[chosen];
    ["baseline", "candidate"].forEach((name, index) => {
      const texts = methods.map((method) => `${method.name} (${percent(method.accuracy)}%)`);
      get(name).replaceChildren(...texts.map((text, number) => new Option(text, number)));
      get(name).value = pair[index];
    });
    show();
    draw();
  }

  if (experiments.length) {
    get("experiment").addEventListener("input", choose);
    for (const name of ["baseline", "candidate", "metric", "order", "confusion-method"]) get(name).addEventListener("input", show);
    get("classes-all").addEventListener("click", () => {
      allClasses = true;
      show();
    });
    get("selector").addEventListener("submit", (event) => event.preventDefault());
    get("experiment").parentElement.hidden = experiments.length === 1;
    choose();
  } else {
    draw();
  }
})();
