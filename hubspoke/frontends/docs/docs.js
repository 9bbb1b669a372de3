// Renders openapi.json: every operation with its parameters, body and answers, and a button that
// sends it. Text goes in as text nodes only, so nothing in the document can become markup.
"use strict";

const base = new URL("openapi.json", location.href);

function element(tag, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}

function resolve(document_, schema) {
  while (schema && schema.$ref) {
    schema = schema.$ref.slice(2).split("/").reduce((at, key) => at[key], document_);
  }
  return schema || {};
}

function typeOf(document_, schema) {
  const real = resolve(document_, schema);
  return real.type || (real.anyOf || []).map((s) => typeOf(document_, s)).join(" or ") || "any";
}

function rows(heads, lines) {
  const cells = (tag, line) => element("tr", {}, ...line.map((c) => element(tag, {}, c || "")));
  return element("table", {}, cells("th", heads), ...lines.map((line) => cells("td", line)));
}

function example(document_, schema) {
  const real = resolve(document_, schema);
  if (real.examples) return real.examples[0];
  if (real.type === "object") {
    const entries = Object.entries(real.properties || {});
    return Object.fromEntries(entries.map(([k, v]) => [k, example(document_, v)]));
  }
  return { number: 0, integer: 0, string: "", boolean: false, array: [] }[real.type] ?? null;
}

function operation(document_, path, method, about) {
  const box = element("details", { className: method });
  box.append(element("summary", {}, element("b", {}, method.toUpperCase()),
    element("code", {}, path), ` ${about.summary || ""}`));
  if (about.description) box.append(element("p", {}, about.description));
  const inputs = {};
  const parameters = about.parameters || [];
  if (parameters.length) {
    box.append(rows(["parameter", "in", "type", ""], parameters.map((p) =>
      [p.name, p.in, typeOf(document_, p.schema), p.description])));
  }
  for (const p of parameters) {
    inputs[p.name] = element("input", { name: p.name });
    box.append(element("label", {}, `${p.name} `, inputs[p.name]));
  }
  const content = about.requestBody && about.requestBody.content["application/json"];
  let body = null;
  if (content) {
    const schema = resolve(document_, content.schema);
    box.append(rows(["field", "type", ""], Object.entries(schema.properties || {}).map(
      ([name, field]) => [name, typeOf(document_, field), field.description])));
    const text = JSON.stringify(example(document_, content.schema), null, 2);
    body = element("textarea", { rows: 6, value: text });
    box.append(body);
  }
  box.append(rows(["answer", ""], Object.entries(about.responses).map(
    ([status, answer]) => [status, answer.description])));
  const output = element("pre", { hidden: true });
  const send = element("button", { type: "button" }, "Send");
  send.onclick = async () => {
    const filled = path.replace(/{(\w+)}/g, (_, name) => encodeURIComponent(inputs[name].value));
    const request = { method: method.toUpperCase() };
    if (body) Object.assign(request, { body: body.value,
      headers: { "content-type": "application/json" } });
    output.hidden = false;
    output.textContent = "…";
    try {
      const answer = await fetch(new URL(filled.slice(1), base), request);
      let text = await answer.text();
      try { text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: as it is */ }
      output.textContent = `${answer.status} ${answer.statusText}\n${text}`;
    } catch (error) {
      output.textContent = String(error);
    }
  };
  box.append(send, output);
  return box;
}

async function main() {
  const operations = document.getElementById("operations");
  try {
    const document_ = await (await fetch(base)).json();
    document.getElementById("title").textContent =
      `${document_.info.title} ${document_.info.version}`;
    document.getElementById("description").textContent = document_.info.description || "";
    operations.replaceChildren(...Object.entries(document_.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, about]) => operation(document_, path, method, about))));
  } catch (error) {
    operations.textContent = `openapi.json could not be shown: ${error}`;
  }
}

main();
