// The form: native inputs, built once from `groups` and kept to what `fields` says of each setting.
const make = (tag, attributes = {}, ...inside) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...inside);
  return node;
};
let count = 0;
const nextId = (name) => `cpp-${name}-${++count}`;

// Text boxes keep what is being typed, or what could not be read, until an answer replaces it.
const textBox = (id, name, say) => {
  const box = make("input", { id, name, type: "text", class: "cpp-box", autocomplete: "off", spellcheck: "false" });
  let typing = false;
  box.addEventListener("input", () => { typing = true; });
  box.addEventListener("change", () => { typing = false; say(box.value); });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && typing) { typing = false; box.update(box.field); }
  });
  box.update = (field) => {
    box.field = field;
    box.placeholder = field.placeholder;
    box.setAttribute("aria-invalid", String(Boolean(field.problem)));
    if (!typing && !field.problem && box.value !== field.text) box.value = field.text;
  };
  return box;
};

const kinds = {
  text(id, name, say) {
    const box = textBox(id, name, say);
    box.inputMode = "decimal";
    return { node: box, input: box, update: box.update };
  },

  range(id, name, say) {
    const box = textBox(id, name, say);
    box.inputMode = "decimal";
    const slider = make("input", { type: "range", min: 0, step: "any", class: "cpp-slider" });
    let values = [], at = 0;
    const go = (index) => {
      const to = Math.max(0, Math.min(values.length - 1, index));
      if (to !== at) { at = to; slider.value = to; say(values[to]); }
    };
    const place = (value) => {
      if (value <= values[0]) return 0;
      const above = values.findIndex((one) => one >= value);
      if (above < 0) return values.length - 1;
      return above - (values[above] - value) / (values[above] - values[above - 1]);
    };
    slider.addEventListener("input", () => { const to = Math.round(slider.value); if (to === at) slider.value = at; else go(to); });
    slider.addEventListener("keydown", (event) => {
      const next = { ArrowRight: Math.floor(at) + 1, ArrowUp: Math.floor(at) + 1, ArrowLeft: Math.ceil(at) - 1, ArrowDown: Math.ceil(at) - 1,
        PageUp: Math.floor(at) + 4, PageDown: Math.ceil(at) - 4, Home: 0, End: values.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      go(next);
    });
    const update = (field) => {
      values = field.options;
      at = place(field.now);
      slider.max = values.length - 1;
      slider.value = at;
      slider.style.setProperty("--cpp-part", `${(100 * at) / (values.length - 1)}%`);
      slider.setAttribute("aria-label", `${field.label}, slider`);
      slider.setAttribute("aria-valuetext", field.shown);
      box.update(field);
    };
    return { node: make("div", { class: "cpp-range" }, slider, box), input: box, update };
  },

  select(id, name, say) {
    const list = make("select", { id, name, class: "cpp-box", onchange: () => say(list.value || null) });
    let options = "";
    const update = (field) => {
      const now = JSON.stringify(field.options);
      if (now !== options) {
        options = now;
        list.replaceChildren(...field.options.map(([value, label]) => make("option", { value }, label)));
      }
      list.value = field.now;
    };
    return { node: make("div", { class: "cpp-caret" }, list), input: list, update };
  },

  check(id, name, say) {
    const box = make("input", { id, name, type: "checkbox", class: "cpp-check", onchange: () => say(box.checked) });
    return { node: box, input: box, inline: true, update: (field) => { box.checked = field.now; box.disabled = Boolean(field.why); } };
  },

  choice(id, name, say) {
    const row = make("div", { class: "cpp-choice" });
    let options = "";
    const update = (field) => {
      const now = JSON.stringify(field.options);
      if (now !== options) {
        const held = row.contains(document.activeElement);
        options = now;
        row.replaceChildren(...field.options.map(([value, label, why]) => make("label", { title: why },
          make("input", { type: "radio", name: id, value, disabled: Boolean(why), "aria-label": why ? `${label}: ${why}` : label,
            onchange: () => say(value) }),
          make("span", {}, label))));
        if (held) row.querySelector(`input[value="${CSS.escape(field.now)}"]`)?.focus();
      }
      for (const radio of row.querySelectorAll("input")) radio.checked = radio.value === String(field.now);
    };
    return { node: row, input: row, many: true, update };
  },

  // A combobox as ARIA describes it: type to search, arrows to move, Enter to take, any path may be typed.
  search(id, name, say) {
    const list = make("ul", { id: `${id}-list`, class: "cpp-list", role: "listbox", hidden: true });
    const box = make("input", { id, name, type: "text", class: "cpp-box", role: "combobox", autocomplete: "off", spellcheck: "false",
      "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id });
    let options = [], field = null, at = -1;
    const open = () => !list.hidden;
    const close = () => { list.hidden = true; at = -1; box.setAttribute("aria-expanded", "false"); box.removeAttribute("aria-activedescendant"); };
    const take = (value) => { box.value = value; close(); if (value !== field.text || field.problem) say(value); };
    const mark = (to) => {
      const rows = [...list.children].filter((row) => row.role === "option");
      if (!rows.length) return;
      at = (to + rows.length) % rows.length;
      rows.forEach((row, i) => row.setAttribute("aria-selected", String(i === at)));
      box.setAttribute("aria-activedescendant", rows[at].id);
      const row = rows[at];
      list.scrollTop = Math.max(row.offsetTop + row.offsetHeight - list.clientHeight + 4, Math.min(list.scrollTop, row.offsetTop - 4));
    };
    const show = (words) => {
      const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
      const found = options.filter(([value]) => wanted.every((word) => value.toLowerCase().includes(word)));
      list.replaceChildren(...found.map(([value, facts], i) => make("li", { id: `${id}-${i}`, role: "option", "aria-selected": "false",
        onmousedown: (event) => { event.preventDefault(); take(value); } }, make("span", {}, value), make("small", {}, facts))));
      if (!found.length) list.append(make("li", { class: "cpp-none" }, "None of that name; Enter takes it as a path."));
      list.hidden = false;
      at = -1;
      box.setAttribute("aria-expanded", "true");
    };
    box.addEventListener("focus", () => box.select());
    box.addEventListener("click", () => { if (!open()) { box.select(); show(""); mark(options.findIndex(([value]) => value === field.text)); } });
    box.addEventListener("input", () => show(box.value));
    box.addEventListener("change", () => { if (!open()) take(box.value.trim()); });
    box.addEventListener("blur", () => { if (open()) { close(); take(box.value.trim()); } });
    box.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        event.preventDefault();
        if (!open()) { show(""); mark(options.findIndex(([value]) => value === field.text)); }
        else mark(at + (event.key === "ArrowDown" ? 1 : at < 0 ? 0 : -1));
      } else if (event.key === "Enter") {
        event.preventDefault();
        take(open() && at >= 0 ? list.children[at].firstChild.textContent : box.value.trim());
      } else if (event.key === "Escape" && open()) {
        event.preventDefault();
        close();
        box.value = field.text;
      }
    });
    const update = (now) => {
      field = now;
      options = now.options;
      box.setAttribute("aria-invalid", String(Boolean(now.problem)));
      box.title = now.text;
      if (!open() && !now.problem && box.value !== now.text) box.value = now.text;
    };
    return { node: make("div", { class: "cpp-search cpp-caret" }, box, list), input: box, update };
  },
};

const control = (name, first, choices, say) => {
  const id = nextId(name);
  const part = kinds[first.kind](id, name, (value) => say(name, value));
  const flag = make("code", { class: "cpp-flag", title: first.means }, first.flag);
  const back = make("button", { type: "button", class: "cpp-back", onclick: () => { say(name, null); (part.many ? part.node.querySelector("input:enabled") : part.input).focus(); } });
  const help = make("span", { id: `${id}-help`, class: "cpp-words" });
  const under = make("div", { class: "cpp-under" }, help, back);
  const label = part.many ? make("span", { class: "cpp-label" }, first.label) : make("label", { class: "cpp-label", for: id }, first.label);
  const head = part.inline
    ? make("div", { class: "cpp-head" }, make("span", { class: "cpp-inline" }, part.node, label), flag)
    : make("div", { class: "cpp-head" }, label, flag);
  const node = part.many
    ? make("fieldset", { class: "cpp-field", "data-name": name }, make("legend", {}, head), part.node, under)
    : make("div", { class: "cpp-field", "data-name": name }, head, ...(part.inline ? [] : [part.node]), under);
  (part.many ? node : part.input).setAttribute("aria-describedby", help.id);
  let before = "";
  const update = (said) => {
    const field = choices ? { ...said, options: choices } : said;
    part.update(field);
    const now = JSON.stringify(said);
    if (now === before) return;
    before = now;
    node.hidden = Boolean(field.hidden);
    node.classList.toggle("cpp-wrong", Boolean(field.problem));
    help.textContent = field.problem || field.help;
    help.title = field.problem;
    back.textContent = field.back ? `↺ ${field.back}` : "";
    back.hidden = !field.back;
    back.setAttribute("aria-label", field.back ? `${field.label}: back to ${field.back}` : "");
    under.hidden = !field.back && !help.textContent;
  };
  return { node, update };
};

function render({ model, el }) {
  const lost = make("p", { class: "cpp-lost", role: "alert", hidden: true },
    "No answer from the kernel behind this page. ",
    make("a", { href: "", onclick: (event) => { event.preventDefault(); location.reload(); } }, "Reload to go on"),
    "; the address keeps what was answered last.");
  let waiting = 0;
  const say = (name, value) => {
    model.send({ say: { [name]: value } });
    clearTimeout(waiting);
    waiting = setTimeout(() => { lost.hidden = false; }, 5000);
  };
  const controls = {};
  const field = (name) => (controls[name] = control(name, model.get("fields")[name], model.get("lists")[name], say)).node;
  const form = make("form", { class: "cp cpp-form", autocomplete: "off", "data-lm-suppress-shortcuts": "true", onsubmit: (event) => event.preventDefault() }, lost,
    ...model.get("groups").map(([title, names, more]) => {
      const id = nextId("group");
      return make("section", { class: "cpp-group", "aria-labelledby": title ? id : null },
        ...(title ? [make("h2", { id }, title)] : []), ...names.map(field),
        ...(more.length ? [make("details", { class: "cpp-more" }, make("summary", {}, "More"), ...more.map(field))] : []));
    }));
  const update = () => {
    const fields = model.get("fields");
    for (const name in controls) controls[name].update(fields[name]);
  };
  const answered = () => { clearTimeout(waiting); lost.hidden = true; update(); };
  model.on("change:fields", update);
  model.on("change:answered", answered);
  update();
  el.append(form);
  return () => { clearTimeout(waiting); model.off("change:fields", update); model.off("change:answered", answered); };
}
export default { render };
