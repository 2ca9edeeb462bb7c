// Keeps the query of the address to the question; only on a page that Voila serves, where the address is ours.
function render({ model }) {
  if (document.body.dataset.voila === undefined) return;
  const update = () => {
    const to = new URL(location.href);
    to.search = model.get("query");
    if (to.href !== location.href) history.replaceState(history.state, "", to);
  };
  model.on("change:query", update);
  update();
  return () => model.off("change:query", update);
}
export default { render };
