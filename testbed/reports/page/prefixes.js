/* The prompts of a run as a tree: width is tokens, height is requests, colour is what was found. */

const TREE_HEIGHT = 420;
const HEAD = 24;
const AXIS = 20;
/* The part of the prompts that the whole tree shows to their ends. */
const FITTING = 0.95;
const TINTS = {
  hits: [["cached", "always found in the cache"], ["cold", "never"]],
  recency: [["cached", "used just now"], ["cold", "long ago"]],
};

/* Where each node begins, how many requests share it, and its box's top, in requests. */
function layOut(nodes, ends) {
  const count = nodes.parent.length;
  const start = new Float64Array(count);
  const uses = new Float64Array(count);
  const children = Array.from({ length: count }, () => []);
  const roots = [];
  for (const node of ends) uses[node] += 1;
  for (let i = count - 1; i >= 0; i--) if (nodes.parent[i] >= 0) uses[nodes.parent[i]] += uses[i];
  for (let i = 0; i < count; i++) {
    const above = nodes.parent[i];
    if (above >= 0) {
      start[i] = start[above] + nodes.tokens[above];
      children[above].push(i);
    } else roots.push(i);
  }
  const top = new Float64Array(count);
  const stack = (siblings, from) => {
    // Folded rests last, then by how many share them, so that a box stays where it is.
    siblings.sort((a, b) => (nodes.folded[a] > 0) - (nodes.folded[b] > 0) || uses[b] - uses[a] || a - b);
    for (const node of siblings) {
      top[node] = from;
      from += uses[node];
    }
  };
  stack(roots, 0);
  for (let i = 0; i < count; i++) stack(children[i], top[i]);
  return { nodes, start, uses, top, children, roots, total: ends.length };
}

/* Up to a moment: requests and found tokens by node, its last use, and the hit rate of all. */
function usedUntil(tree, found, limit) {
  const { parent, tokens } = tree.nodes;
  const uses = new Float64Array(parent.length);
  const hits = new Float64Array(parent.length);
  const last = new Float64Array(parent.length);
  let cached = 0;
  let prompts = 0;
  for (let r = 0; r < limit; r++) {
    cached += found.cached[r];
    prompts += found.prompt[r];
    for (let node = found.node[r]; node >= 0; node = parent[node]) {
      uses[node] += 1;
      last[node] = found.admitted_us[r] / 1e6;
      hits[node] += clamp(found.cached[r] - tree.start[node], 0, tokens[node]);
    }
  }
  return { uses, hits, last, rate: prompts ? cached / prompts : 0 };
}

/* From cold to the colour of cached tokens. */
function shade(part) {
  const [cold, hot] = [colour("cold"), colour("cached")];
  return `color-mix(in oklab, ${hot} ${(100 * part).toFixed(0)}%, ${cold})`;
}

async function prefixView(root) {
  const canvas = canvasOf("Tree of prompts: arrow keys move, Enter looks into a box, Escape shows all");
  const readout = make("p", { className: "readout" });
  readout.setAttribute("aria-live", "polite");
  const moment = make("input", { type: "range", min: 0, oninput: () => step() });
  const tint = make("select", { onchange: () => draw() },
    make("option", { value: "hits" }, "part found in the cache"),
    make("option", { value: "recency" }, "last use"));
  const clock = make("span", {});
  let tree, found, until, focus, selected, span, boxes;

  /* All of a node and what is below it; of the whole tree, all but the longest prompts' ends. */
  function extent(node) {
    if (node < 0) {
      const lengths = Float64Array.from(found.prompt).sort();
      const width = lengths[Math.floor(FITTING * (lengths.length - 1))] || 1;
      return { x: 0, y: 0, width, height: Math.max(tree.total, 1) };
    }
    let reach = tree.start[node] + tree.nodes.tokens[node];
    const open = [...tree.children[node]];
    while (open.length) {
      const next = open.pop();
      reach = Math.max(reach, tree.start[next] + tree.nodes.tokens[next]);
      open.push(...tree.children[next]);
    }
    const x = tree.start[node];
    return { x, y: tree.top[node], width: Math.max(reach - x, 1), height: tree.uses[node] || 1 };
  }

  function part(node) {
    if (!until.uses[node]) return 0;
    if (tint.value === "hits") {
      return tree.nodes.tokens[node] ? until.hits[node] / until.uses[node] / tree.nodes.tokens[node] : 0;
    }
    const now = found.admitted_us[Math.max(moment.value - 1, 0)] / 1e6;
    return now ? until.last[node] / now : 1;
  }

  function draw() {
    if (!tree) return;
    const { context, width } = paper(canvas, HEAD + TREE_HEIGHT + AXIS);
    drawLegend(context, "Prompts", TINTS[tint.value], 0, HEAD / 2);
    const x = (token) => ((token - span.x) / span.width) * width;
    const y = (request) => HEAD + ((request - span.y) / span.height) * TREE_HEIGHT;
    const shades = Array.from({ length: 21 }, (_, i) => shade(i / 20));
    const fold = hatching(context);
    boxes = [];
    context.save();
    context.beginPath();
    context.rect(0, HEAD, width, TREE_HEIGHT);
    context.clip();
    for (let node = 0; node < tree.start.length; node++) {
      const box = { node, x: x(tree.start[node]), y: y(tree.top[node]),
        width: (tree.nodes.tokens[node] / span.width) * width,
        height: (tree.uses[node] / span.height) * TREE_HEIGHT };
      if (box.x > width || box.x + box.width < 0 || box.y > HEAD + TREE_HEIGHT || box.y + box.height < HEAD) continue;
      boxes.push(box);
      const gap = (size) => (size > 4 ? 1 : 0);
      const shape = [box.x, box.y, box.width - gap(box.width), box.height - gap(box.height)];
      context.fillStyle = shades[Math.round(20 * clamp(part(node), 0, 1))];
      context.globalAlpha = until.uses[node] ? 1 : 0.25;
      context.fillRect(...shape);
      if (tree.nodes.folded[node]) {
        context.fillStyle = fold;
        context.fillRect(...shape);
      }
      context.globalAlpha = 1;
      if (node === selected) {
        context.strokeStyle = colour("ink");
        context.lineWidth = 2;
        context.strokeRect(box.x + 1, box.y + 1, Math.max(box.width - 2, 1), Math.max(box.height - 2, 1));
      }
    }
    context.restore();
    context.fillStyle = colour("soft");
    const gap = niceStep(span.width, width / 120);
    for (let at = Math.ceil(span.x / gap) * gap; at < span.x + span.width; at += gap) {
      context.textAlign = at === 0 ? "left" : "center";
      if (x(at) < width - 60) context.fillText(whole.format(at), x(at), HEAD + TREE_HEIGHT + 12);
    }
    context.textAlign = "right";
    context.fillText("tokens", width, HEAD + TREE_HEIGHT + 12);
  }

  function hatching(context) {
    const tile = make("canvas", { width: 6, height: 6 });
    const pen = tile.getContext("2d");
    pen.strokeStyle = colour("paper");
    pen.globalAlpha = 0.55;
    pen.beginPath();
    for (const shift of [-6, 0, 6]) {
      pen.moveTo(shift, 6);
      pen.lineTo(shift + 6, 0);
    }
    pen.stroke();
    return context.createPattern(tile, "repeat");
  }

  function describe() {
    const limit = Number(moment.value);
    const at = limit ? found.admitted_us[limit - 1] / 1e6 : 0;
    clock.textContent = `${seconds(at, 0.1)}: ${whole.format(limit)} of ${whole.format(tree.total)} requests, hit rate ${until.rate.toFixed(3)}`;
    if (selected === undefined) {
      readout.textContent = "Point at a box to read it.";
      return;
    }
    const { tokens, folded } = tree.nodes;
    const first = tree.start[selected];
    const uses = until.uses[selected];
    const where = folded[selected]
      ? `The rests of ${whole.format(folded[selected])} prompts from token ${whole.format(first)} on, ${whole.format(tokens[selected])} tokens each on average`
      : `Tokens ${whole.format(first)} to ${whole.format(first + tokens[selected])} of the prompt`;
    const share = tokens[selected] && uses ? until.hits[selected] / uses / tokens[selected] : 0;
    readout.textContent = uses
      ? `${where}: asked for by ${whole.format(uses)} requests so far, found in the cache ${(100 * share).toFixed(1)} % of the time; last use at ${seconds(until.last[selected], 0.1)}.`
      : `${where}: not asked for yet.`;
  }

  function select(node) {
    if (node === selected) return;
    selected = node;
    draw();
    describe();
  }

  function look(node) {
    focus = node;
    span = extent(node);
    draw();
  }

  function step() {
    until = usedUntil(tree, found, Number(moment.value));
    draw();
    describe();
  }

  async function choose(place) {
    found = await unpack(`prefixes-${place}`);
    const nodes = await unpack(found.tree);
    tree = layOut(nodes, found.node);
    moment.max = tree.total;
    moment.value = tree.total;
    selected = undefined;
    focus = -1;
    span = extent(-1);
    step();
  }

  const boxAt = (event) => boxes.findLast((b) =>
    event.offsetX >= b.x && event.offsetX < b.x + b.width && event.offsetY >= b.y && event.offsetY < b.y + b.height && event.offsetY >= HEAD);
  canvas.onpointermove = (event) => select(boxAt(event)?.node);
  canvas.onclick = (event) => {
    const box = boxAt(event);
    look(box && box.node !== focus ? box.node : -1);
  };
  canvas.onkeydown = (event) => {
    const above = selected === undefined ? -1 : tree.nodes.parent[selected];
    const siblings = above < 0 ? tree.roots : tree.children[above];
    const place = siblings.indexOf(selected);
    const actions = {
      ArrowRight: () => select(selected === undefined ? tree.roots[0] : tree.children[selected][0] ?? selected),
      ArrowLeft: () => select(above < 0 ? selected : above),
      ArrowDown: () => select(siblings[Math.min(place + 1, siblings.length - 1)]),
      ArrowUp: () => select(siblings[Math.max(place - 1, 0)]),
      Enter: () => look(selected ?? -1),
      Escape: () => look(-1),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  };

  root.replaceChildren(
    make("div", { className: "controls" },
      labelled("Run", runChoice("prefixes", choose)), labelled("Colour", tint),
      make("button", { type: "button", onclick: () => look(-1) }, "Whole tree"),
      labelled("Until", moment), clock),
    canvas, readout);
  await choose(0);
  redrawing(canvas, draw);
}

for (const [id, view] of [["timeline-view", timelineView], ["prefixes-view", prefixView]]) {
  const root = document.getElementById(id);
  if (root) view(root);
}
