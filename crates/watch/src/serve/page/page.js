"use strict";
// Whatever a daemon says is put in as text, never as HTML.
const SVG = "http://www.w3.org/2000/svg";
const KEPT = 300, EVERY_MS = 1000, LIMIT_MS = 2500, NODES_MAX = 16;
const MARKS = {
  protected: ["good", "✓", ""], unprotected: ["bad", "!", "square"], diverged: ["bad", "≠", "square"],
  hung: ["bad", "‖", "square"], waiting: ["wait", "…", ""], fenced: ["bad", "×", "square"], ended: ["wait", "■", ""],
};
const $ = (id) => document.getElementById(id);
const shown = {};
let groups = [], history = [], chosen = "", heardAt = null, isGone = false;

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Words between backticks are names.
const rich = (text) => text.split("`").map((piece, index) => index % 2 ? el("code", {}, piece) : piece);

// Draws a part anew only if what it shows has changed.
function part(id, data, make) {
  const key = JSON.stringify(data);
  if (shown[id] === key) return;
  shown[id] = key;
  $(id).replaceChildren(...[make()].flat());
}

const clock = (at) => new Date(at).toLocaleTimeString([], { hour12: false, timeZoneName: "short" });
function day(at) {
  const date = new Date(at);
  return isNaN(date) ? String(at) : date.toLocaleString([], { dateStyle: "medium", timeStyle: "long", hour12: false });
}
function count(value) {
  if (value < 10000) return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
  const units = ["k", "M", "G", "T"];
  let unit = -1;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return value.toFixed(value < 100 ? 1 : 0) + " " + units[unit];
}
function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return (unit ? value.toFixed(1) : String(Math.round(value))) + " " + units[unit];
}
function duration(us) {
  if (us < 1000) return us + " µs";
  if (us < 1e6) return (us / 1000).toFixed(us < 1e5 ? 1 : 0) + " ms";
  return (us / 1e6).toFixed(2) + " s";
}

function hero(group) {
  const s = group.status, [tone, mark, shape] = MARKS[s.state] || ["wait", "?", ""];
  $("group").textContent = "Group " + s.group + ", seen from " + s.member + " (" + roleOf(s) + ")";
  part("word", [s.state], () => {
    $("word").className = "word " + tone;
    const word = s.state === "unprotected" ? "UNPROTECTED" : s.state.charAt(0).toUpperCase() + s.state.slice(1);
    return [el("span", { class: "mark " + shape, "aria-hidden": "true", "data-mark": mark }), el("span", {}, word)];
  });
  const fine = { host: "This host server is announced.", witness: "Both members ask the witness." }[s.role] ||
    (isString(s) ? "The flows survive the loss of a string." : "");
  part("reason", [s.reason, s.state, s.role], () => s.reason ? rich(s.reason) :
    (s.state === "protected" ? fine || "The service survives the loss of a host." : ""));
  part("remedy", s.remedy, () => s.remedy ? [el("b", {}, "Remedy: "), ...rich(s.remedy)] : []);
  const facts = [["Connections", count(s.connections)]];
  if (s.at_risk) facts.push(["At risk", count(s.at_risk)]);
  if (s.role === "primary" || s.role === "backup") facts.push(["Lag", bytes(s.lag.bytes)]);
  facts.push(["Epoch", String(s.epoch)]);
  if (s.mode) facts.push(["Mode", s.mode]);
  if (s.buffering && s.buffering !== "commit") facts.push(["Buffering", s.buffering]);
  const flows = group.show && group.show.flows;
  if (flows && flows.max) facts.push(["Flow table", count(flows.count) + " of " + count(flows.max)]);
  facts.push(["Version", s.version]);
  part("facts", facts, () => facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  document.title = mark + " " + s.group + " " + s.state;
}

const isString = (s) => s.member === "near" || s.member === "far";
const roleOf = (s) => s.role === "none" ? "no role yet" : s.role;

// What a peer is: members say of each other how they are, which is not that.
function partOf(s, peer) {
  if (["edge", "witness", "etcd"].includes(peer.name)) return peer.name;
  const part = { primary: "backup", backup: "primary" }[s.role];
  return part && !/^(current|in step|owns)/.test(peer.note) ? part : "";
}

// A peer in a line: what it is, and what it says unless all is fine.
function wordsOf(s, peer) {
  const says = peer.note === "protected" ? "" : peer.note;
  return [partOf(s, peer), says].filter(Boolean).join(": ") || (peer.connected ? "heard" : "");
}

// The hosts, in rows from the clients down: what stands before the members, the members, the rest.
function rowsOf(group) {
  const s = group.status;
  const me = { name: s.member, lines: [roleOf(s), s.state], tone: (MARKS[s.state] || ["wait"])[0], me: true, on: true };
  const peers = s.peers.map((peer) => ({
    name: peer.name, on: peer.connected, note: peer.note, me: false,
    lines: [wordsOf(s, peer), peer.connected ? "heard" : "not heard"],
    tone: peer.connected ? "good" : "bad", main: partOf(s, peer) === "primary" || /^(current|primary)/.test(peer.note),
  }));
  me.main = s.role === "primary";
  const clients = { name: "Clients", lines: [count(s.connections) + " connections"], tone: "soft", on: true, small: true };
  const isFront = (peer) => peer.name === "edge" || peer.note === "edge" || peer.note === "does not answer";
  if (isString(s)) {
    const other = { name: s.member === "near" ? "far" : "near", lines: ["the other edge"], tone: "soft", on: true };
    return s.member === "near" ? [[clients], [me], peers, [other]] : [[clients], [other], peers, [me]];
  }
  if (s.role === "edge") return [[clients], [me, ...peers.filter(isFront)], peers.filter((peer) => !isFront(peer))];
  if (s.role === "witness") return [[clients], peers, [me]];
  if (s.role === "host") return [[clients], peers, [me]];
  const front = peers.filter(isFront), rest = peers.filter((peer) => !isFront(peer));
  const members = [me, ...rest.slice(front.length ? 0 : 1)].sort((a, b) => a.name < b.name ? -1 : 1);
  return front.length ? [[clients], front, members] : [[clients], members, rest.slice(0, 1)];
}

function cut(text, width) {
  const most = Math.max(4, Math.floor(width / 6.9));
  return text.length > most ? text.slice(0, most - 1) + "…" : text;
}

function node(it, x, y, w, h) {
  const group = draw("g", {}, draw("title", {}, [it.name, ...it.lines].join(", ")));
  const kind = "box" + (it.me ? " me" : "") + (it.on ? "" : " off");
  group.append(draw("rect", { x, y, width: w, height: h, rx: 12, class: kind }));
  const middle = x + w / 2, text = (dy, kind, words) =>
    group.append(draw("text", { x: middle, y: y + dy, "text-anchor": "middle", class: kind }, cut(words, w - 16)));
  text(24, "name", it.name + (it.me ? " (here)" : ""));
  it.lines.forEach((line, index) => {
    const isLast = index === it.lines.length - 1;
    const sign = isLast && it.tone !== "soft" ? (it.tone === "good" ? "● " : it.tone === "bad" ? "○ " : "◐ ") : "";
    text(46 + 19 * index, isLast ? it.tone : "soft", sign + line);
  });
  return group;
}

function map(group, width) {
  const few = (row) => row.length <= NODES_MAX ? row
    : [...row.slice(0, NODES_MAX - 1), { name: `and ${row.length - NODES_MAX + 1} more`, lines: ["holdfast status names them"], tone: "soft", on: true }];
  const rows = rowsOf(group).map(few).filter((row) => row.length);
  const gap = 14, down = 38, placed = [];
  let y = 2;
  const image = draw("svg", { role: "img" });
  const lines = draw("g", {}), nodes = draw("g", {});
  for (const row of rows) {
    const per = Math.max(1, Math.min(row.length, Math.floor((width + gap) / 134)));
    const w = Math.min(230, (width - gap * (per - 1)) / per);
    const h = row.some((it) => it.lines.length > 1) ? 80 : 60;
    const here = [];
    for (let at = 0; at < row.length; at += per) {
      const part = row.slice(at, at + per), all = part.length * w + (part.length - 1) * gap;
      part.forEach((it, index) => {
        const x = (width - all) / 2 + index * (w + gap);
        here.push({ it, x: x + w / 2, top: y, bottom: y + h });
        nodes.append(node(it, x, y, w, h));
      });
      y += h + (at + per < row.length ? gap : down);
    }
    placed.push(here);
  }
  placed.slice(1).forEach((row, index) => {
    for (const to of row) for (const from of placed[index]) {
      if (to.top !== row[0].top || from.bottom !== placed[index].at(-1).bottom) continue;
      const off = !to.it.on || !from.it.on, main = !off && (to.it.main || to.it.me && group.status.role === "edge");
      const half = (to.top + from.bottom) / 2;
      const way = `M${from.x} ${from.bottom}C${from.x} ${half} ${to.x} ${half} ${to.x} ${to.top}`;
      lines.append(draw("path", { d: way, class: "way" + (off ? " off" : main ? " main" : "") }));
    }
  });
  const height = y - down + 4;
  fill(image, { viewBox: `0 0 ${width} ${height}`, height, "aria-label": words(rows) }, [lines, nodes]);
  return image;
}

const words = (rows) => rows.map((row) => row.map((it) => it.name + ": " + it.lines.join(", ")).join("; ")).join(". ");

function chart(name, values, times, show, height, width) {
  const last = values.at(-1) ?? 0, top = Math.max(...values, 0);
  const begin = times[0] ?? 0, span = Math.max((times.at(-1) ?? 0) - begin, 1);
  const x = (at) => (at - begin) / span * width, y = (value) => height - 1 - (top ? value / top : 0) * (height - 5);
  const points = values.map((value, index) => x(times[index]).toFixed(1) + " " + y(value).toFixed(1));
  const image = draw("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", preserveAspectRatio: "none",
    "aria-label": `${name}: now ${show(last)}, at most ${show(top)}` });
  image.append(draw("line", { x1: 0, x2: width, y1: height - .5, y2: height - .5, class: "base" }));
  if (points.length > 1) {
    image.append(draw("path", { d: `M0 ${height}L${points.join("L")}L${width} ${height}Z`, class: "area" }));
    image.append(draw("path", { d: "M" + points.join("L"), class: "curve" }));
  }
  const seconds = Math.round(span / 1000);
  const ago = seconds < 90 ? seconds + " s ago" : Math.round(seconds / 60) + " min ago";
  const caption = el("figcaption", {}, el("span", { class: "of" }, name), el("b", {}, show(last)));
  return el("figure", { class: "chart" }, caption, image,
    el("div", { class: "scale" }, el("span", {}, ago), el("span", {}, "at most " + show(top))));
}

// What a counter grew by in each second.
function rates(values, times) {
  return values.map((value, index) => {
    if (!index) return 0;
    const grown = value - values[index - 1], long = Math.max((times[index] - times[index - 1]) / 1000, .2);
    return grown > 0 ? grown / long : 0;
  }).slice(1);
}

const widthOf = (id) => Math.max(200, $(id).clientWidth);

function charts(group, past) {
  const s = group.status, width = widthOf("charts");
  part("charts", [past.at.at(-1), width], () => {
    const all = [chart("Connections", past.connections, past.at, count, 84, width)];
    const isMember = s.role === "primary" || s.role === "backup" || s.role === "none";
    if (isMember) all.push(chart("Lag of the backup", past.lag_bytes, past.at, bytes, 84, width));
    else all.push(chart("Most active: " + (busiest(past)[0] || "nothing"), rates(past.counters[busiest(past)[0]] || [], past.at),
      past.at.slice(1), (value) => count(value) + " /s", 84, width));
    return all;
  });
  const moving = busiest(past).slice(0, isSmall() ? 4 : 6);
  part("counters", [past.at.at(-1), moving, width], () => moving.length
    ? moving.map((name) => chart(name, rates(past.counters[name], past.at), past.at.slice(1), (value) => count(value) + " /s", 40, 220))
    : el("p", { class: "none" }, "No counter has changed in the last minutes."));
}

const isSmall = () => window.innerWidth < 600;

function busiest(past) {
  const grown = (name) => past.counters[name].at(-1) - past.counters[name][0];
  return Object.keys(past.counters).filter((name) => !name.endsWith("_us") && grown(name) > 0).sort((a, b) => grown(b) - grown(a));
}

function takeovers(group) {
  const all = [...group.takeovers].reverse(), width = widthOf("takeovers");
  part("takeovers", [all, width], () => {
    if (!all.length) return el("p", { class: "none" }, "None since this daemon was started.");
    const [last, ...earlier] = all;
    const out = [el("h3", {}, last.cause || "takeover"),
      el("p", { class: "when" }, `${day(last.at)}: ${duration(last.total_us)} after ${duration(last.phases_us.detect)} of detection; ${count(last.connections)} connections carried over`),
      phases(last, width)];
    if (earlier.length) out.push(el("ul", {}, ...earlier.map((it) =>
      el("li", {}, `${day(it.at)}: ${it.cause}, ${duration(it.total_us)}, ${count(it.connections)} connections`))));
    return out;
  });
}

function phases(takeover, width) {
  const p = takeover.phases_us, begins = { detect: 0, fence: p.detect, drain: p.detect };
  let at = p.detect + Math.max(p.fence, p.drain);
  for (const name of ["probe", "repair", "address", "kick"]) { begins[name] = at; at += p[name]; }
  const names = ["detect", "fence", "drain", "probe", "repair", "address", "kick"], row = 25;
  const left = 68, right = 76, room = width - left - right, whole = Math.max(at, 1);
  const image = draw("svg", { viewBox: `0 0 ${width} ${names.length * row}`, height: names.length * row, role: "img",
    "aria-label": names.map((name) => name + " " + duration(p[name])).join(", ") });
  names.forEach((name, index) => {
    const y = index * row, x = left + begins[name] / whole * room;
    image.append(draw("line", { x1: left, x2: width - right, y1: y + row / 2, y2: y + row / 2, class: "base" }));
    image.append(draw("text", { x: 0, y: y + 17, class: "soft" }, name));
    image.append(draw("rect", { x, y: y + 6, width: Math.max(2, p[name] / whole * room), height: 13, rx: 3, class: "bar " + name }));
    image.append(draw("text", { x: width, y: y + 17, "text-anchor": "end" }, duration(p[name])));
  });
  return image;
}

function events(group) {
  const all = [...group.events].reverse();
  part("events", all, () => all.map((event) => el("li", {},
    el("time", { datetime: event.at, title: day(event.at) }, clock(event.at)), el("b", {}, event.what), el("span", {}, ...rich(event.detail)))));
}

function pick() {
  const at = groups.findIndex((group) => group.status && group.status.group === chosen);
  return at < 0 ? 0 : at;
}

function show() {
  const at = pick(), group = groups[at];
  $("groups").hidden = groups.length < 2;
  part("groups", [groups.map((it) => it.status && it.status.group), at], () => groups.map((it, index) => {
    const name = it.status ? it.status.group : "?";
    const button = el("button", { type: "button", "aria-pressed": String(index === at) }, name);
    button.addEventListener("click", () => { chosen = name; window.location.hash = name; show(); });
    return button;
  }));
  tell(group);
  if (!group || !group.status) return;
  hero(group);
  const width = widthOf("map");
  part("map", [group.status.peers, group.status.state, group.status.role, group.status.connections, width], () => map(group, width));
  charts(group, history[at] || { at: [], connections: [], lag_bytes: [], counters: {} });
  takeovers(group);
  events(group);
}

// Says at once when what is shown is not how it is now.
function tell(group) {
  const isOld = group && (group.age_ms === null || group.age_ms > group.stale_after_ms);
  const since = heardAt ? " since " + clock(heardAt) : "";
  const alarm = isGone ? "No answer from this host" + since + ": what is below is old. The daemon may have ended."
    : isOld ? "The daemon does not answer: what is below is " + Math.round((group.age_ms || 0) / 1000) + " s old." : "";
  if ($("alarm").textContent !== alarm) $("alarm").textContent = alarm;
  document.body.classList.toggle("gone", Boolean(alarm));
  if (alarm) document.title = "? no answer" + (group && group.status ? ": " + group.status.group : "");
  $("fresh").textContent = alarm ? "old" : heardAt ? "live, " + clock(heardAt) : "connecting…";
}

async function get(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(LIMIT_MS) });
  if (!answer.ok) throw new Error(path + ": " + answer.status);
  return (await answer.json()).groups;
}

function remember() {
  groups.forEach((group, index) => {
    const past = history[index], s = group.status;
    if (!past || !s || group.age_ms > EVERY_MS * 2) return;
    const long = past.at.length;
    past.at.push(group.now);
    past.connections.push(s.connections);
    past.lag_bytes.push(s.lag.bytes);
    for (const [name, value] of Object.entries(s.counters)) {
      const before = past.before[name];
      // A counter that has not moved has no column yet.
      if (!past.counters[name] && before !== undefined && before !== value) past.counters[name] = Array(long).fill(before);
      if (past.counters[name]) past.counters[name].push(value);
    }
    past.before = s.counters;
    const over = past.at.length - KEPT;
    if (over > 0) for (const column of [past.at, past.connections, past.lag_bytes, ...Object.values(past.counters)]) column.splice(0, over);
    for (const [name, column] of Object.entries(past.counters)) while (column.length < past.at.length) column.push(column.at(-1) ?? 0);
  });
}

async function turn() {
  try {
    const wasGone = isGone || !history.length;
    const now = await get("status.json");
    if (wasGone || now.length !== history.length) {
      history = (await get("history.json")).map((past, index) => ({ ...past, before: now[index].status ? now[index].status.counters : {} }));
    }
    groups = now;
    isGone = false;
    if (groups.some((group) => group.age_ms !== null && group.age_ms <= group.stale_after_ms)) heardAt = Date.now();
    if (!wasGone) remember();
  } catch {
    isGone = true;
  }
  show();
  setTimeout(turn, EVERY_MS);
}

try {
  chosen = decodeURIComponent(window.location.hash.slice(1));
} catch {
  chosen = ""; // Whoever made that link has made a mistake.
}
new ResizeObserver(() => { if (groups.length) show(); }).observe(document.querySelector("main"));
turn();
