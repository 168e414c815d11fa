/* The steps of a run: lanes of areas over time, exact means at every zoom. */

const GUTTER = 58;
const OVERVIEW = 34;
const LANE_GAP = 26;
const LANES = [
  { title: "Tokens per second", height: 120, rates: true,
    stack: [["cached", "cached_tokens", "prompt, found in the cache"],
      ["computed", "prefill_tokens", "prompt, computed"], ["generated", "decode_tokens", "generated"]] },
  { title: "Sequences", height: 90,
    stack: [["own", "running", "running"], ["queue", "waiting", "waiting"]] },
  { title: "Pages of the pool", height: 90, held: true,
    stack: [["own", "own_pages", "of running sequences alone"],
      ["locked", "locked_pages", "cached, in use"], ["kept", "evictable_pages", "cached, evictable"]] },
  { title: "Pages evicted per second", height: 50, rates: true,
    stack: [["evicted", "evicted_pages", "evicted"]] },
];

/* Integrals over time of every column, at the start (2i) and end (2i + 1) of each step. */
function prepare(replica) {
  const count = replica.step_us.length;
  const time = new Float64Array(2 * count);
  const numbers = new Float64Array(count);
  let clock = 0;
  let number = 0;
  for (let i = 0; i < count; i++) {
    clock += replica.idle_us[i] / 1e6;
    time[2 * i] = clock;
    clock += replica.step_us[i] / 1e6;
    time[2 * i + 1] = clock;
    numbers[i] = number += replica.step[i];
  }
  const integrals = {};
  for (const lane of LANES) {
    for (const [, column] of lane.stack) {
      const values = replica[column];
      const sums = new Float64Array(2 * count);
      let sum = 0;
      for (let i = 0; i < count; i++) {
        // The pool keeps what it holds while nothing runs.
        if (lane.held && i) sum += values[i - 1] * (time[2 * i] - time[2 * i - 1]);
        sums[2 * i] = sum;
        sum += lane.rates ? values[i] : values[i] * (time[2 * i + 1] - time[2 * i]);
        sums[2 * i + 1] = sum;
      }
      integrals[column] = sums;
    }
  }
  return { replica, count, time, numbers, integrals, end: time[2 * count - 1] };
}

/* The last place whose time is not after `at`; -1 before the first. */
function placeAt(time, at) {
  let low = 0;
  let high = time.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (time[middle] <= at) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function integralAt(sums, time, place, at) {
  if (place < 0) return 0;
  if (place === time.length - 1) return sums[place];
  const span = time[place + 1] - time[place];
  return sums[place] + (span ? (at - time[place]) / span : 0) * (sums[place + 1] - sums[place]);
}

/* Means of a column in equal slices of [from, to]. */
function means(run, column, from, to, slices) {
  const sums = run.integrals[column];
  const width = (to - from) / slices;
  const values = new Float64Array(slices);
  let before = integralAt(sums, run.time, placeAt(run.time, from), from);
  for (let i = 0; i < slices; i++) {
    const at = from + (i + 1) * width;
    const after = integralAt(sums, run.time, placeAt(run.time, at), at);
    values[i] = Math.max(0, (after - before) / width);
    before = after;
  }
  return values;
}

function drawLane(context, run, lane, box, from, to, limit) {
  const slices = Math.max(1, Math.round(box.width));
  const base = new Float64Array(slices);
  const layers = lane.stack.map(([name, column]) => {
    const values = means(run, column, from, to, slices);
    const lower = base.slice();
    for (let i = 0; i < slices; i++) base[i] += values[i];
    return { name, lower, upper: base.slice() };
  });
  const top = limit || Math.max(...base) || 1;
  const y = (value) => box.y + box.height * (1 - Math.min(value / top, 1));
  for (const { name, lower, upper } of layers) {
    context.fillStyle = colour(name);
    for (let i = 0; i < slices; i++) {
      if (upper[i] > lower[i]) context.fillRect(box.x + i, y(upper[i]), 1, y(lower[i]) - y(upper[i]));
    }
  }
  return top;
}

function drawLabels(context, lane, box, top) {
  const entries = lane.stack.length > 1 ? lane.stack.map(([name, , text]) => [name, text]) : [];
  drawLegend(context, lane.title, entries, box.x, box.y - 11);
  context.fillStyle = colour("soft");
  context.textAlign = "right";
  context.fillText(short(top), box.x - 6, box.y + 5);
  context.fillText("0", box.x - 6, box.y + box.height - 4);
  context.fillStyle = colour("rule");
  context.fillRect(box.x, box.y + box.height, box.width, 1);
}

async function timelineView(root) {
  const canvas = canvasOf("Timeline of steps: arrow keys step, plus and minus zoom, Home shows all");
  const readout = make("p", { className: "readout" });
  readout.setAttribute("aria-live", "polite");
  const replicas = make("select", { onchange: () => show(Number(replicas.value)) });
  const replicaLabel = labelled("Replica", replicas);
  let data, run, from, to, cursor;

  const height = LANES.reduce((sum, lane) => sum + lane.height + LANE_GAP, OVERVIEW + 30);
  const plotWidth = () => Math.max(canvas.clientWidth - GUTTER, 1);
  const timeAt = (x) => from + ((x - GUTTER) / plotWidth()) * (to - from);

  function draw() {
    if (!run) return;
    const { context, width } = paper(canvas, height);
    const plot = { x: GUTTER, width: width - GUTTER };
    drawLane(context, run, LANES[1], { ...plot, y: 0, height: OVERVIEW - 8 }, 0, run.end, 0);
    context.fillStyle = colour("link");
    context.globalAlpha = 0.25;
    const left = (from / run.end) * plot.width;
    context.fillRect(plot.x + left, 0, Math.max(((to - from) / run.end) * plot.width, 2), OVERVIEW - 8);
    context.globalAlpha = 1;
    let y = OVERVIEW + 20;
    for (const lane of LANES) {
      const box = { ...plot, y, height: lane.height };
      const top = drawLane(context, run, lane, box, from, to, lane.held ? data.num_pages : 0);
      drawLabels(context, lane, box, top);
      y += lane.height + LANE_GAP;
    }
    drawTimes(context, plot, y - LANE_GAP + 12);
    if (cursor !== undefined) {
      const [start, end] = [run.time[2 * cursor], run.time[2 * cursor + 1]];
      const at = (t) => plot.x + clamp((t - from) / (to - from), 0, 1) * plot.width;
      context.fillStyle = colour("ink");
      context.globalAlpha = 0.3;
      context.fillRect(at(start), OVERVIEW + 12, Math.max(at(end) - at(start), 1), y - LANE_GAP - OVERVIEW - 12);
      context.globalAlpha = 1;
    }
  }

  function drawTimes(context, plot, y) {
    const step = niceStep(to - from, plot.width / 110);
    context.fillStyle = colour("soft");
    context.textAlign = "center";
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const x = plot.x + ((at - from) / (to - from)) * plot.width;
      if (x < plot.x + plot.width - 20) context.fillText(seconds(at, step), x, y);
    }
  }

  function describe() {
    const r = run.replica;
    const i = cursor;
    const pages = (column) => `${((100 * r[column][i]) / data.num_pages).toFixed(0)} %`;
    const which = r.merged > 1 ? `${r.merged} steps from ${whole.format(run.numbers[i])} on` : `Step ${whole.format(run.numbers[i])}`;
    readout.textContent =
      `${which} at ${seconds(run.time[2 * i], 1e-3)}, ${+(r.step_us[i] / 1e3).toPrecision(4)} ms: ` +
      `${whole.format(r.decode_tokens[i])} tokens generated; ${whole.format(r.prefill_tokens[i])} prompt tokens ` +
      `computed in ${whole.format(r.prefill_rows[i])} rows, ${whole.format(r.cached_tokens[i])} found in the cache. ` +
      `${whole.format(r.running[i])} sequences run, ${whole.format(r.waiting[i])} wait. Pool: ` +
      `${pages("own_pages")} running, ${pages("locked_pages")} cached and in use, ` +
      `${pages("evictable_pages")} evictable; ${whole.format(r.evicted_pages[i])} pages evicted.`;
  }

  function view(start, end) {
    const shortest = Math.min(run.end, 1e-3);
    const length = clamp(end - start, shortest, run.end);
    from = clamp(start, 0, run.end - length);
    to = from + length;
    draw();
  }

  function zoom(factor, around = (from + to) / 2) {
    view(around - (around - from) * factor, around + (to - around) * factor);
  }

  function point(step) {
    cursor = clamp(step, 0, run.count - 1);
    const start = run.time[2 * cursor];
    if (start < from || start > to) view(start - (to - from) / 2, start + (to - from) / 2);
    else draw();
    describe();
  }

  function show(index) {
    run = prepare(data.replicas[index]);
    cursor = undefined;
    readout.textContent = `${whole.format(run.count)} steps in ${seconds(run.end, 1)}. Point at one to read it.`;
    view(0, run.end);
  }

  async function choose(place) {
    data = await unpack(`timeline-${place}`);
    replicas.replaceChildren(...data.replicas.map((r, i) => make("option", { value: i }, r.replica)));
    replicaLabel.hidden = data.replicas.length < 2;
    show(0);
  }

  let dragged;
  canvas.onpointerdown = (event) => {
    canvas.setPointerCapture(event.pointerId);
    const overview = event.offsetY < OVERVIEW;
    if (overview) jump(event);
    dragged = { x: event.offsetX, from, to, overview };
  };
  function jump(event) {
    const at = ((event.offsetX - GUTTER) / plotWidth()) * run.end;
    view(at - (to - from) / 2, at + (to - from) / 2);
  }
  canvas.onpointermove = (event) => {
    if (dragged && dragged.overview) jump(event);
    else if (dragged) {
      const shift = ((dragged.x - event.offsetX) / plotWidth()) * (to - from);
      view(dragged.from + shift, dragged.to + shift);
    } else if (event.offsetX >= GUTTER) point(placeAt(run.time, timeAt(event.offsetX)) >> 1);
  };
  canvas.onpointerup = canvas.onpointercancel = () => (dragged = undefined);
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event.offsetX));
  }, { passive: false });
  canvas.onkeydown = (event) => {
    const around = cursor === undefined ? undefined : run.time[2 * cursor];
    const actions = {
      ArrowLeft: () => point((cursor ?? 1) - 1),
      ArrowRight: () => point((cursor ?? -1) + 1),
      PageUp: () => view(from - (to - from) / 2, to - (to - from) / 2),
      PageDown: () => view(from + (to - from) / 2, to + (to - from) / 2),
      "+": () => zoom(0.5, around),
      "=": () => zoom(0.5, around),
      "-": () => zoom(2, around),
      Home: () => view(0, run.end),
    };
    if (!actions[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
  };

  root.replaceChildren(
    make("div", { className: "controls" },
      labelled("Run", runChoice("timeline", choose)), replicaLabel,
      make("button", { type: "button", onclick: () => zoom(0.5), ariaLabel: "Zoom in" }, "+"),
      make("button", { type: "button", onclick: () => zoom(2), ariaLabel: "Zoom out" }, "−"),
      make("button", { type: "button", onclick: () => view(0, run.end) }, "Whole run")),
    canvas, readout);
  await choose(0);
  redrawing(canvas, draw);
}
