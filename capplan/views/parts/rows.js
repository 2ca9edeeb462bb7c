// Rows with a button each; pressing one sends its place in the list.
function render({ model, el }) {
  const list = document.createElement("ul");
  list.className = "cpp-rows";
  const text = (tag, name, words) => Object.assign(document.createElement(tag), { className: name, textContent: words });
  const update = () => {
    const held = [...list.querySelectorAll("button")].indexOf(document.activeElement);
    list.replaceChildren(...model.get("rows").map((row, place) => {
      const line = document.createElement("li");
      const button = text("button", "cpp-button", row.button);
      button.type = "button";
      button.setAttribute("aria-label", row.label);
      button.addEventListener("click", () => model.send({ press: place }));
      const words = text("span", "cpp-what", "");
      if (row.code) words.append(text("code", "", row.code), " ");
      words.append(text("span", "cpp-why", row.words));
      line.append(words, text("b", `cpp-gives cpp-${row.sign}`, row.gives), button);
      return line;
    }));
    if (!list.childElementCount) list.append(text("li", "cpp-nothing", model.get("empty")));
    if (held >= 0) [...list.querySelectorAll("button")].at(Math.min(held, list.childElementCount - 1))?.focus();
  };
  const card = document.createElement("section");
  card.className = "cp cp-card cpp-card";
  card.append(text("h2", "", model.get("title")), list);
  model.on("change:rows", update);
  update();
  el.append(card);
  return () => model.off("change:rows", update);
}
export default { render };
