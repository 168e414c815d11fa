"use strict";
/* What both views need: packed data, elements, a canvas in the page's colours. */

async function unpack(id) {
  const text = document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function labelled(text, control) {
  control.ariaLabel = text;
  return make("label", {}, text, control);
}

/* A select of the runs in the template, or nothing where there is one run only. */
function runChoice(name, choose) {
  const select = make("select", { onchange: () => choose(Number(select.value)) });
  select.append(document.getElementById(`${name}-runs`).content.cloneNode(true));
  return select;
}

function canvasOf(label) {
  const canvas = make("canvas", { tabIndex: 0 });
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", label);
  return canvas;
}

/* A context in CSS pixels, cleared, `height` high and as wide as the canvas is shown. */
function paper(canvas, height) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth || canvas.parentElement.clientWidth;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.clearRect(0, 0, width, height);
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  context.textBaseline = "middle";
  return { context, width };
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/* A title at the left, then what each colour stands for. */
function drawLegend(context, title, entries, x, y) {
  context.textAlign = "left";
  context.fillStyle = colour("ink");
  context.fillText(title, x, y);
  x += context.measureText(title).width + 16;
  for (const [name, text] of entries) {
    context.fillStyle = colour(name);
    context.fillRect(x, y - 5, 9, 9);
    context.fillStyle = colour("soft");
    context.fillText(text, x + 14, y);
    x += context.measureText(text).width + 30;
  }
}

/* Draw again when size or colours change, and in light colours for print. */
function redrawing(canvas, draw) {
  new ResizeObserver(draw).observe(canvas.parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  const themed = (theme) => () => {
    document.documentElement.dataset.theme = theme;
    draw();
  };
  addEventListener("beforeprint", themed("light"));
  addEventListener("afterprint", themed(""));
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/* A number in few digits. */
function short(value) {
  if (value >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (value >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  return value >= 100 ? whole.format(value) : String(+value.toPrecision(3));
}

function seconds(value, step = 0.01) {
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step))));
  return `${value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} s`;
}

/* A round step that divides `range` into about `count` parts. */
function niceStep(range, count) {
  const rough = range / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
