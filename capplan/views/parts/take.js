// Copies and downloads: text is copied from what is here already, files are asked for when wanted.
function render({ model, el }) {
  const card = Object.assign(document.createElement("section"), { className: "cp cp-card cpp-card" });
  const line = Object.assign(document.createElement("code"), { className: "cp-command" });
  const update = () => { line.textContent = model.get("command"); };
  const row = Object.assign(document.createElement("div"), { className: "cpp-take" });
  const said = Object.assign(document.createElement("span"), { className: "cpp-said" });
  said.setAttribute("role", "status");
  let fading = 0;
  const tell = (words) => {
    said.textContent = words;
    clearTimeout(fading);
    fading = setTimeout(() => { said.textContent = ""; }, 4000);
  };
  const copy = async (words, what) => {
    try {
      await navigator.clipboard.writeText(words);
    } catch {
      const box = Object.assign(document.createElement("textarea"), { value: words, readOnly: true });
      box.style.cssText = "position:fixed;opacity:0";
      document.body.append(box);
      box.select();
      const done = document.execCommand("copy");
      box.remove();
      if (!done) return tell("The browser does not let this page copy.");
    }
    tell(`${what} copied`);
  };
  const link = () => {
    const to = new URL(location.href);
    to.search = model.get("query");
    to.hash = "";
    return to.href;
  };
  const button = (words, act) => {
    const one = Object.assign(document.createElement("button"), { type: "button", className: "cpp-button", textContent: words });
    one.addEventListener("click", act);
    row.append(one);
  };
  button("Copy command", () => copy(model.get("command"), "Command"));
  if (document.body.dataset.voila !== undefined) button("Copy link", () => copy(link(), "Link"));
  button("JSON", () => model.send({ file: "json" }));
  button("CSV", () => model.send({ file: "csv" }));
  row.append(said);
  const save = ({ name, type, text }) => {
    const to = URL.createObjectURL(new Blob([text], { type }));
    Object.assign(document.createElement("a"), { href: to, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(to), 10000);
    tell(`${name} saved`);
  };
  model.on("msg:custom", save);
  card.append(Object.assign(document.createElement("h2"), { textContent: "Take it with you" }), line, row);
  model.on("change:command", update);
  update();
  el.append(card);
  return () => { clearTimeout(fading); model.off("msg:custom", save); model.off("change:command", update); };
}
export default { render };
