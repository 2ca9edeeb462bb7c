// A plotly chart; plotly.js comes once a page from the kernel, after everything else is on the screen.
const settings = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };

const library = (model) => (window.capplanPlotly ??= new Promise((resolve, reject) => {
  const receive = async (message, buffers) => {
    if (message.part !== "plotly.js") return;
    model.off("msg:custom", receive);
    const to = URL.createObjectURL(new Blob(["var define;\n", buffers[0]], { type: "text/javascript" }));
    try {
      await import(to);
      resolve(window.Plotly);
    } catch (error) {
      reject(error);
    } finally {
      URL.revokeObjectURL(to);
    }
  };
  model.on("msg:custom", receive);
  model.send({ want: "plotly.js" });
}));

function render({ model, el }) {
  const card = Object.assign(document.createElement("section"), { className: "cp cp-card cp-chart cpp-card" });
  const head = Object.assign(document.createElement("h2"), { textContent: model.get("title") });
  head.append(Object.assign(document.createElement("span"), { className: "cp-sub", textContent: ` · ${model.get("subtitle")}` }));
  const place = Object.assign(document.createElement("div"), { className: "cpp-plot" });
  place.setAttribute("role", "img");
  const wait = Object.assign(document.createElement("p"), { className: "cpp-wait", textContent: "Loading the chart" });
  place.append(wait);
  card.append(head, place);
  el.append(card);

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => { model.set("theme", dark.matches ? "dark" : "light"); model.save_changes(); };
  let drawing = Promise.resolve(), wanted = false;
  const draw = () => {
    if (wanted || !model.get("figure")) return;
    wanted = true;
    drawing = drawing.then(async () => {
      const plotly = await library(model);
      wanted = false;
      const { data, layout } = JSON.parse(model.get("figure"));
      wait.remove();
      place.setAttribute("aria-label", layout.meta?.description ?? model.get("title"));
      await plotly.react(place, data, layout, settings);
    }).catch((error) => { wait.textContent = `The chart could not be drawn: ${error.message}`; });
  };
  model.on("change:figure", draw);
  dark.addEventListener("change", theme);
  // Voila shows the page when all of it is there; only then is it time for a chart, and only for one near the screen.
  const near = new IntersectionObserver((seen) => {
    if (!seen.some((one) => one.isIntersecting)) return;
    near.disconnect();
    requestAnimationFrame(() => setTimeout(theme));
  }, { rootMargin: "400px" });
  near.observe(place);
  draw();
  return () => {
    near.disconnect();
    dark.removeEventListener("change", theme);
    model.off("change:figure", draw);
    window.Plotly?.purge(place);
  };
}
export default { render };
