// Questions worth a look, a line each; pressing one asks it.
function render({ model, el }) {
  const line = document.createElement("p");
  line.className = "cp cpp-tries";
  line.append(Object.assign(document.createElement("span"), { textContent: "Look at one where" }));
  model.get("tries").forEach((words, place) => {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "cpp-link", textContent: words });
    button.addEventListener("click", () => model.send({ press: place }));
    line.append(button);
  });
  el.append(line);
}
export default { render };
