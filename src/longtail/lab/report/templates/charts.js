"use strict";
// Charts are drawn when they come into view, in the colours of the page, and again when these change.
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map();

  function colours(printing) {
    const style = getComputedStyle(document.documentElement);
    const [text, quiet, line] = printing ? ["#000000", "#444444", "#cccccc"] : ["--text", "--quiet", "--line"].map((name) => style.getPropertyValue(name).trim());
    return {
      background: "transparent",
      view: { stroke: "transparent" },
      axis: { labelColor: quiet, titleColor: text, gridColor: line, domainColor: quiet, tickColor: quiet },
      legend: { labelColor: text, titleColor: text },
      header: { labelColor: text, titleColor: text },
      title: { color: text, subtitleColor: quiet },
    };
  }

  function merged(base, over) {
    const result = { ...base };
    for (const [name, value] of Object.entries(over)) {
      result[name] = value && typeof value === "object" && !Array.isArray(value) ? merged(result[name] || {}, value) : value;
    }
    return result;
  }

  async function draw(place, printing = false) {
    const chart = charts[place.dataset.chart];
    const spec = { ...chart, config: merged(chart.config || {}, colours(printing)) };
    delete spec.background;
    // One view takes the width that there is; several keep theirs, and are scaled down where that is too wide.
    if (typeof spec.width === "number" && ("mark" in spec || "layer" in spec)) {
      spec.width = "container";
      spec.autosize = { type: "fit-x", contains: "padding" };
    }
    const options = { renderer: "svg", actions: { export: true, source: false, compiled: false, editor: false } };
    try {
      drawn.get(place)?.finalize();
      drawn.set(place, await vegaEmbed(place, spec, options));
    } catch (error) {
      place.textContent = `This figure could not be drawn: ${error.message}`;
    }
  }

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !drawn.has(entry.target)) {
        drawn.set(entry.target, null);
        draw(entry.target);
      }
    }
  }, { rootMargin: "400px" });
  for (const place of document.querySelectorAll("[data-chart]")) seen.observe(place);

  const redraw = () => { for (const place of drawn.keys()) draw(place); };
  dark.addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => { for (const place of drawn.keys()) draw(place, true); });
  window.addEventListener("afterprint", redraw);
})();
