"use strict";
// The explorer: counts of classes in, effective numbers, weights and losses out, as longtail.class_weights has them.
(() => {
  const MOST_ROWS = 200;
  const get = (id) => document.getElementById(id);
  const presets = JSON.parse(get("presets").textContent);

  // ---- numbers ----------------------------------------------------------------------------------------------------

  /** (1-β^n)/(1-β); expm1 and log1p keep the digits that 1-β^n loses near β = 1. */
  function effectiveNumber(n, beta) {
    if (n === 0) return 0;
    if (beta === 1) return n;
    return -Math.expm1(n * Math.log1p(-(1 - beta))) / (1 - beta);
  }

  /** Weights of classes: 1/E, scaled; a class without images has none. */
  function classWeights(counts, beta, normalize) {
    const raw = counts.map((n) => (n > 0 ? 1 / effectiveNumber(n, beta) : 0));
    const sum = (values) => values.reduce((total, value) => total + value, 0);
    const scale = normalize === "classes"
      ? counts.filter((n) => n > 0).length / sum(raw)
      : sum(counts) / sum(counts.map((n, index) => n * raw[index]));
    return raw.map((value) => value * scale);
  }

  // Not Math.max(...values), which fails for as many values as a function has no room for.
  const largest = (values) => values.reduce((a, b) => Math.max(a, b));
  const smallest = (values) => values.reduce((a, b) => Math.min(a, b));

  const focal = (p, gamma) => (gamma === 0 ? 1 : (1 - p) ** gamma) * (p === 1 ? 0 : -Math.log(p));

  /** β with as many digits as tell it apart from 1, so that the line of Python gives what is shown. */
  function betaOf(exponent) {
    const rest = Number((10 ** -exponent).toPrecision(3));
    return Number((1 - rest).toFixed(Math.ceil(exponent) + 3));
  }

  // ---- reading counts ---------------------------------------------------------------------------------------------

  const isCount = (text) => /^\d+$/.test(text);

  function unquoted(name) {
    const text = name.trim();
    return /^".*"$/.test(text) ? text.slice(1, -1).replaceAll('""', '"') : text;
  }

  /** {names, counts} or {problem}: numbers alone, or in each line a name and a number. */
  function parse(text) {
    const lines = text.replace(/^\uFEFF/, "").split(/\r\n|\r|\n/).map((line) => line.trim()).filter(Boolean);
    if (!lines.length) return { problem: "" };
    const pairs = lines.map((line) => /^(.*\S)\s*[,;\t]\s*([^,;\t]*)$/.exec(line) || /^(.*\S)\s+(\d+)$/.exec(line));
    // Two numbers in each of several lines are a name that is a number, and a count.
    const two = lines.length > 1 && lines.every((line) => /^\d+\s*[,;\t]\s*\d+$/.test(line));
    const numbers = /^[\d\s,;[\]()]*$/.test(lines.join(" ")) && !two;
    const list = lines.length === 1 && pairs[0] && /[,;\t]/.test(pairs[0][1]);
    return numbers || list || pairs.includes(null) ? parseNumbers(lines.join(" ")) : parseNamed(pairs);
  }

  function parseNamed(pairs) {
    // A first line without a number has the names of the columns.
    const rows = pairs.length > 1 && !isCount(pairs[0][2].trim()) ? pairs.slice(1) : pairs;
    const bad = rows.find((row) => !isCount(row[2].trim()));
    if (bad) return { problem: `A count must be a whole number, but that of “${unquoted(bad[1])}” is “${bad[2].trim()}”.` };
    return checked(rows.map((row) => unquoted(row[1])), rows.map((row) => Number(row[2])));
  }

  function parseNumbers(text) {
    const words = text.replace(/[[\]()]/g, " ").split(/[\s,;]+/).filter(Boolean);
    const bad = words.find((word) => !isCount(word));
    if (bad !== undefined) return { problem: `A count must be a whole number, but “${bad.slice(0, 60)}” is none.` };
    return checked(words.map((_, index) => String(index)), words.map(Number));
  }

  function checked(names, counts) {
    const large = counts.find((n) => !Number.isSafeInteger(n));
    if (large !== undefined) return { problem: "A count is too large to be one of images." };
    if (!counts.some((n) => n > 0)) return { problem: "All classes are without images." };
    return { names, counts };
  }

  // ---- drawing ----------------------------------------------------------------------------------------------------

  const SVG = "http://www.w3.org/2000/svg";

  function node(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  /** An empty picture with horizontal lines at the ticks; scale maps values to heights from 0 to 1. */
  function frame(index, height, ticks, scale, foot = 24) {
    const width = Math.max(index.clientWidth, 200);
    const box = { left: 44, right: width - 8, top: 10, bottom: height - 24 };
    height += foot - 24;
    const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
    const y = (value) => box.bottom - (box.bottom - box.top) * Math.min(1, Math.max(0, scale(value)));
    for (const tick of ticks) {
      svg.append(node("line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }));
      svg.append(node("text", { x: box.left - 6, y: y(tick) + 4, "text-anchor": "end" }, short(tick)));
    }
    index.replaceChildren(svg);
    return { svg, box, y };
  }

  const short = (value) => (value >= 1e6 ? `${value / 1e6}M` : value >= 1e4 ? `${value / 1e3}k` : String(value));

  /** Bars of equal width, side by side, as one path. */
  function bars(picture, values, kind) {
    const { box, y } = picture;
    const step = (box.right - box.left) / values.length;
    const gap = step > 4 ? step * 0.15 : 0;
    const path = values.map((value, index) => {
      const x = box.left + index * step + gap;
      return value > 0 ? `M${x.toFixed(2)} ${box.bottom}V${y(value).toFixed(2)}H${(x + step - 2 * gap).toFixed(2)}V${box.bottom}Z` : "";
    });
    picture.svg.append(node("path", { class: kind, d: path.join("") }));
  }

  const clipped = (name, most = 16) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);

  /** How the names of classes fit below bars: level, slanted, or those of the first and the last class alone. */
  function layout(index, names) {
    const step = (Math.max(index.clientWidth, 200) - 52) / names.length;
    const longest = largest(names.map((name) => clipped(name).length));
    if (longest * 7 < step) return { kind: "level", foot: 24 };
    return step >= 13 ? { kind: "slanted", foot: 24 + longest * 4.5 } : { kind: "ends", foot: 24 };
  }

  function label(picture, names, { kind }) {
    const { svg, box } = picture;
    if (kind === "ends") {
      svg.append(node("text", { x: box.left, y: box.bottom + 18 }, `${clipped(names[0])} (most frequent)`));
      svg.append(node("text", { x: box.right, y: box.bottom + 18, "text-anchor": "end" }, `${clipped(names.at(-1))} (rarest)`));
      return;
    }
    const step = (box.right - box.left) / names.length;
    names.forEach((name, index) => {
      const x = box.left + (index + 0.5) * step;
      const place = kind === "level"
        ? { x, y: box.bottom + 18, "text-anchor": "middle" }
        : { "text-anchor": "end", transform: `translate(${x + 4} ${box.bottom + 12}) rotate(-40)` };
      svg.append(node("text", place, clipped(name)));
    });
  }

  /** 1, 2 or 5 times a power of ten, so that at most five of them reach the value. */
  function niceTicks(most) {
    const power = 10 ** Math.floor(Math.log10(most / 5));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => most / size <= 5.000001);
    const ticks = [];
    for (let index = 0; index * step <= most * 1.000001; index += 1) ticks.push(Number((index * step).toPrecision(12)));
    return ticks;
  }

  function drawNumbers(names, counts, effective) {
    const chosen = layout(get("numbers-chart"), names);
    const top = Math.ceil(Math.log10(largest(counts)) + 1e-9) || 1;
    const ticks = Array.from({ length: top + 1 }, (_, index) => 10 ** index);
    // Half a decade below 1, so that a class of one image has a bar.
    const picture = frame(get("numbers-chart"), 190, ticks, (value) => (Math.log10(value) + 0.5) / (top + 0.5), chosen.foot);
    bars(picture, counts, "images");
    bars(picture, effective, "effective");
    label(picture, names, chosen);
  }

  function drawWeights(names, weights) {
    const chosen = layout(get("weights-chart"), names);
    const most = Math.max(largest(weights), 1) * 1.05;
    const picture = frame(get("weights-chart"), 190, niceTicks(most), (value) => value / most, chosen.foot);
    bars(picture, weights, "effective");
    const { svg, box, y } = picture;
    svg.append(node("line", { class: "one", x1: box.left, x2: box.right, y1: y(1), y2: y(1) }));
    label(picture, names, chosen);
  }

  const PROBABILITIES = Array.from({ length: 200 }, (_, index) => (index + 1) / 200);

  function drawLoss(curves) {
    const most = Math.max(largest(curves.map(([, , loss]) => loss(0.1))), 0.5) * 1.15;
    const picture = frame(get("loss-chart"), 260, niceTicks(most), (value) => value / most);
    const { svg, box, y } = picture;
    const clip = node("clipPath", { id: "loss-clip" });
    clip.append(node("rect", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top + 2 }));
    svg.append(clip);
    for (const [kind, , loss] of curves) {
      const points = PROBABILITIES.map((p) => {
        const height = Math.min(loss(p) / most, 3);
        return `${(box.left + p * (box.right - box.left)).toFixed(1)} ${(box.bottom - height * (box.bottom - box.top)).toFixed(1)}`;
      });
      svg.append(node("path", { class: `curve ${kind}`, d: `M${points.join("L")}`, "clip-path": "url(#loss-clip)" }));
    }
    for (const p of [0, 0.25, 0.5, 0.75, 1]) {
      const anchor = p === 0 ? "start" : p === 1 ? "end" : "middle";
      svg.append(node("text", { x: box.left + p * (box.right - box.left), y: box.bottom + 18, "text-anchor": anchor }, String(p)));
    }
  }

  // ---- tables -----------------------------------------------------------------------------------------------------

  const digits = (value) => (value === 0 ? "0" : value >= 1e5 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 }));

  function fill(table, rows) {
    const body = get(table).tBodies[0];
    body.replaceChildren(...rows.map(([name, ...values]) => {
      const row = document.createElement("tr");
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = name;
      row.append(head);
      for (const value of values) {
        const cell = row.insertCell();
        cell.className = "number";
        cell.dataset.value = value;
        cell.textContent = Number.isInteger(value) ? value.toLocaleString("en") : digits(value);
      }
      return row;
    }));
  }

  function python(counts, beta, normalize) {
    const other = (normalize === "classes" ? "" : `, normalize="${normalize}"`) + (counts.includes(0) ? ', absent="ignore"' : "");
    return `class_weights([${counts.join(", ")}], beta=${beta}${other})`;
  }

  // ---- what the reader does ---------------------------------------------------------------------------------------

  const state = { beta: 0.999 };

  function say(text, bad = false) {
    const message = get("counts-message");
    message.textContent = text;
    message.classList.toggle("bad", bad);
    get("counts").setAttribute("aria-invalid", String(bad));
  }

  function show() {
    if (get("beta").getAttribute("aria-invalid") === "true") {
      say("β must be a number from 0 to 1.", true);
      return;
    }
    const { beta } = state;
    const gamma = Number(get("gamma").value);
    const normalize = get("explore").elements.normalize.value;
    const prototypes = beta === 1 ? "∞" : digits(1 / (1 - beta));
    get("prototypes-value").textContent = `N = ${prototypes}`;
    get("prototypes").setAttribute("aria-valuetext", `N = ${prototypes}, β = ${beta}`);
    get("gamma-value").textContent = `γ = ${gamma}`;
    const read = parse(get("counts").value);
    get("explored").hidden = "problem" in read;
    if ("problem" in read) {
      say(read.problem || "No counts yet: paste some, choose a file, or take those of a data set.", Boolean(read.problem));
      return;
    }
    const { names, counts } = read;
    const absent = counts.filter((n) => n === 0).length;
    const present = counts.filter((n) => n > 0);
    const [most, least] = [largest(present), smallest(present)];
    const total = counts.reduce((a, b) => a + b, 0).toLocaleString("en");
    say(`${counts.length} classes, ${total} images, imbalance ${digits(most / least)}.` + (absent ? ` ${absent} without images: weight 0.` : ""));
    const effective = counts.map((n) => effectiveNumber(n, beta));
    const weights = classWeights(counts, beta, normalize);
    const order = counts.map((_, index) => index).sort((a, b) => counts[b] - counts[a]);
    const ordered = (values) => order.map((index) => values[index]);
    drawNumbers(ordered(names), ordered(counts), ordered(effective));
    drawWeights(ordered(names), ordered(weights));
    const [frequent, rare] = [weights[counts.indexOf(most)], weights[counts.indexOf(least)]];
    const curves = [
      ["entropy", "cross-entropy", (p) => focal(p, 0)],
      ["focal", `focal, γ = ${gamma}`, (p) => focal(p, gamma)],
      ["rare", `× ${digits(rare)}, the rarest class`, (p) => rare * focal(p, gamma)],
      ["frequent", `× ${digits(frequent)}, the most frequent class`, (p) => frequent * focal(p, gamma)],
    ];
    drawLoss(curves);
    fill("loss-table", curves.map(([, name, loss]) => [name, loss(0.1), loss(0.5), loss(0.9)]));
    fill("weights-table", counts.slice(0, MOST_ROWS).map((n, index) => [names[index], n, effective[index], weights[index]]));
    get("weights-more").textContent = counts.length > MOST_ROWS ? `${(counts.length - MOST_ROWS).toLocaleString("en")} more classes are not listed; the line of Python has them all.` : "";
    get("python").textContent = python(counts, beta, normalize);
    get("copied").textContent = "";
  }

  let waiting = 0;
  function soon() {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(show);
  }

  get("prototypes").addEventListener("input", () => {
    state.beta = betaOf(Number(get("prototypes").value));
    get("beta").value = state.beta;
    get("beta").removeAttribute("aria-invalid");
    soon();
  });
  get("beta").addEventListener("input", () => {
    const beta = Number(get("beta").value);
    const good = get("beta").value !== "" && beta >= 0 && beta <= 1;
    get("beta").setAttribute("aria-invalid", String(!good));
    if (good) {
      state.beta = beta;
      get("prototypes").value = beta === 1 ? 6 : Math.log10(1 / (1 - beta));
    }
    soon();
  });
  get("counts").addEventListener("input", () => { get("preset").value = ""; soon(); });
  get("gamma").addEventListener("input", soon);
  for (const button of document.querySelectorAll("[name=normalize]")) button.addEventListener("change", soon);
  get("explore").addEventListener("submit", (event) => event.preventDefault());
  get("file").addEventListener("change", async () => {
    const [file] = get("file").files;
    if (!file) return;
    try {
      get("counts").value = await file.text();
      get("preset").value = "";
      show();
    } catch (error) {
      say(`${file.name} cannot be read: ${error.message}`, true);
    }
  });
  get("copy").addEventListener("click", async () => {
    const done = await copied(get("python"));
    get("copied").textContent = done ? "Copied." : "Selected: copy it with the keyboard.";
  });

  async function copied(element) {
    try {
      await navigator.clipboard.writeText(element.textContent);
      return true;
    } catch {
      // Pages from a disk may have no clipboard: the old way, or at least a selection.
      getSelection().selectAllChildren(element);
      return document.execCommand("copy");
    }
  }

  const line = (name, n) => `${name.replace(/\s+/g, " ")},${n}`;
  const own = new Option("your own", "");
  get("preset").append(own, ...presets.map((preset, index) => new Option(preset.name, String(index))));
  function take() {
    const preset = presets[Number(get("preset").value)];
    if (get("preset").value === "") return;
    get("counts").value = preset.names ? preset.names.map((name, index) => line(name, preset.counts[index])).join("\n") : preset.counts.join(", ");
    show();
  }
  get("preset").addEventListener("change", take);
  new ResizeObserver(soon).observe(get("explorer"));
  get("preset").value = presets.length ? "0" : "";
  take();
  show();
})();
