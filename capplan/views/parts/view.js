// HTML that is changed in place, so that what the reader has unfolded, focused or selected stays, and a live region speaks.
const morph = (from, to) => {
  if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) {
    from.replaceWith(to);
    return;
  }
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return;
  }
  for (const { name, value } of to.attributes) if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  for (const { name } of [...from.attributes]) if (name !== "open" && !to.hasAttribute(name)) from.removeAttribute(name);
  children(from, to);
};
const children = (from, to) => {
  const now = [...from.childNodes], next = [...to.childNodes];
  next.forEach((node, i) => (i < now.length ? morph(now[i], node) : from.append(node)));
  now.slice(next.length).forEach((node) => node.remove());
};

// From a part of the bar to its row in the ledger, unfolded.
const follow = (event) => {
  const term = event.target.closest("[data-term]")?.dataset.term;
  const row = term && event.target.closest(".cpp-page")?.querySelector(`[data-line="${term}"]`);
  if (!row) return;
  const fold = row.querySelector("details");
  if (fold) fold.open = true;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  row.scrollIntoView({ block: "center", behavior: still ? "auto" : "smooth" });
  row.classList.add("cpp-found");
  setTimeout(() => row.classList.remove("cpp-found"), 2500);
};

function render({ model, el }) {
  const place = document.createElement("div");
  place.className = "cpp-view";
  const update = () => {
    const next = document.createElement("template");
    next.innerHTML = model.get("value");
    children(place, next.content);
  };
  place.addEventListener("click", follow);
  model.on("change:value", update);
  update();
  el.append(place);
  return () => model.off("change:value", update);
}
export default { render };
