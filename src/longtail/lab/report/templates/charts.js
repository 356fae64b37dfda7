"use strict";
// Charts are drawn when they come near the view. Their ink is currentColor, so they follow the page into the dark.
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const options = { mode: "vega-lite", renderer: "svg", actions: { export: true, source: false, compiled: false, editor: false } };

  async function draw(place) {
    try {
      await vegaEmbed(place, charts[place.dataset.chart], options);
      place.querySelector("summary")?.setAttribute("aria-label", "Save this figure");
    } catch (error) {
      place.textContent = `This figure could not be drawn: ${error.message}`;
    }
  }

  const places = document.querySelectorAll("[data-chart]");
  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      draw(target);
    }
  }, { rootMargin: "600px" });
  for (const place of places) near.observe(place);
})();
