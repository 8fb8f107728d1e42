// The review's page. What the server sends is only ever set as text.
const WORDS = {
  en: {
    pages: "Pages", picture: "Picture of the page", text: "Text", doubt: "Doubt", doubts: "All doubts of the page",
    home: "All jobs", loading: "Loading the picture …", help: "Help", close: "Close", result: "The result has", witness: "Also read", correction: "Correction",
    save: "Save (Enter)", previous: "Previous (k)", following: "Next doubt (j)", accept: "Confirm (a)",
    whole: "Page checked (w)", page: "Next page (n)", zoom: "Zoom (z)",
    none: "Nothing is left to review.", settled: "No doubt is left on this page. a: confirm the page; n: next page.",
    checked: "The page is checked.", saved: "Saved as revision", stale: "This page was changed elsewhere: check it again.",
    failed: "The action failed", no_picture: "The picture is no longer stored.", of: "of", word: "Selected text",
    low_confidence: "The engine is not sure", disagrees: "Another reading differs", uncovered: "Ink that was not read",
    not_on_page: "Not found on the page", table_unclear: "Unclear table", order_unclear: "Unclear order",
    language_unread: "A script that the engine does not read", nothing: "nothing: type the text", page_number: "page",
    rows: ["top", "middle", "bottom"], columns: ["left", "centre", "right"],
    misplaced: "In another place", only_witness: "Missing in the result", struck_out: "Struck out", unwitnessed: "No second reading of this page",
    missing_fields: "Fields lack content of the page", bundle: "bundle", conflict: "patient in conflict",
    open_bundle: "Enter shows the documents of this bundle.",
    keys: { "j ↓": "next doubt", "k ↑": "previous doubt", "→ ←": "next, previous word", "e Enter": "correct it; Enter saves, Esc leaves",
      a: "accept it as it is; without doubts: the whole page is right", w: "the whole page was compared with its picture",
      "n p": "next, previous page", z: "zoom to the doubt, or the whole page", "+ - 0": "larger, smaller, whole page; the wheel and dragging too",
      "?": "this help" },
  },
  ko: {
    pages: "페이지", picture: "페이지 그림", text: "텍스트", doubt: "의심되는 곳", doubts: "이 페이지의 모든 의심",
    home: "모든 작업", loading: "그림을 불러오는 중 …", help: "도움말", close: "닫기", result: "결과", witness: "다른 판독", correction: "수정",
    save: "저장 (Enter)", previous: "이전 (k)", following: "다음 의심 (j)", accept: "맞음 (a)",
    whole: "페이지 전체 확인 (w)", page: "다음 페이지 (n)", zoom: "확대 (z)",
    none: "검토할 것이 없습니다.", settled: "이 페이지에 남은 의심이 없습니다. a: 페이지 전체가 맞음, n: 다음 페이지.",
    checked: "페이지 전체를 확인했습니다.", saved: "저장됨, 개정", stale: "다른 사람이 이 페이지를 바꾸었습니다. 다시 보십시오.",
    failed: "처리하지 못했습니다", no_picture: "그림이 더 이상 보관되어 있지 않습니다.", of: "/", word: "선택한 텍스트",
    low_confidence: "엔진이 확신하지 못함", disagrees: "다른 판독과 다름", uncovered: "읽지 않은 글자",
    not_on_page: "페이지에서 찾을 수 없음", table_unclear: "표가 분명하지 않음", order_unclear: "순서가 분명하지 않음",
    language_unread: "엔진이 읽지 못하는 문자", nothing: "없음: 적힌 글자를 입력하십시오", page_number: "페이지",
    rows: ["위", "가운데", "아래"], columns: ["왼쪽", "중앙", "오른쪽"],
    misplaced: "다른 위치에 있음", only_witness: "결과에 빠져 있음", struck_out: "줄이 그어짐", unwitnessed: "다른 판독이 없음",
    missing_fields: "페이지에 있는 값이 필드에 없음", bundle: "묶음", conflict: "환자 불일치",
    open_bundle: "Enter를 누르면 이 묶음의 문서가 보입니다.",
    keys: { "j ↓": "다음 의심", "k ↑": "이전 의심", "→ ←": "다음, 이전 단어", "e Enter": "수정; Enter 저장, Esc 취소",
      a: "그대로 맞음; 의심이 없으면 페이지 전체가 맞음", w: "페이지 전체를 그림과 비교함",
      "n p": "다음, 이전 페이지", z: "의심되는 곳 확대, 전체 보기", "+ - 0": "확대, 축소, 전체 보기; 휠과 끌기도 가능", "?": "도움말" },
  },
};
const language = navigator.language.startsWith("ko") ? "ko" : "en";
const say = WORDS[language];
const $ = (id) => document.getElementById(id);
const made = (name, props = {}, ...children) => {
  const element = Object.assign(document.createElement(name), props);
  element.append(...children);
  return element;
};
const drawn = (name, attributes) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};

let pages = [], at = -1, page = null, accepted = new Set(), chosen = null, scale = 1, view = [0, 0, 1, 1];
// `scale`: 1 fits the page; `view`: its visible part: left, top, width, height.
// `chosen`: a doubt of the page, or { target, now, suggested, box } for selected text.

const isBundle = (one) => one?.stage === "split";
const named = (one) => `${one.label ?? one.job_id.slice(-8)} · ${isBundle(one) ? say.bundle : `${say.page_number} ${one.number}`}`;
const openBundle = () => { location.href = `bundle?job=${encodeURIComponent(pages[at].job_id)}`; };
const key = (one) => `${one.job_id}/${one.number}`;
const open = () => (page ? page.doubts.filter((doubt) => !accepted.has(doubt.number)) : []);
const tell = (text) => { $("status").textContent = text; };

async function ask(path, body) {
  const keepalive = document.visibilityState === "hidden"; // the page may be gone before it is sent
  const sent = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), keepalive };
  const answer = await fetch(`api/pages${path}`, sent);
  if (answer.ok) return answer.json();
  throw Object.assign(new Error((await answer.json().catch(() => ({}))).detail ?? answer.statusText), { status: answer.status });
}

// Decisions

async function save(more = {}) {
  const body = { revision: page.revision, accepted: [...accepted], ...more };
  try {
    page = await ask(`/${key(pages[at])}`, body);
    tell(`${say.saved} ${page.revision}`);
  } catch (error) {
    tell(error.status === 409 ? say.stale : `${say.failed}: ${error.message}`);
    if (error.status !== 409) return false;
    page = await ask(`/${key(pages[at])}`);
  }
  Object.assign(pages[at], { revision: page.revision, verdict: page.verdict, doubts: page.doubts.length, checked: page.checked });
  accepted = new Set();
  return true;
}

const flush = () => (accepted.size ? save() : true);

async function correct() {
  const target = chosen?.target;
  const place = open().indexOf(chosen);
  if (!target || !(await save({ target, text: $("entry").value }))) return;
  leaveEntry();
  pick(open()[Math.max(place, 0)] ?? open().at(-1));
}

async function accept() {
  const doubt = open().find((one) => one === chosen);
  if (!doubt) return open().length ? tell("") : check();
  const place = open().indexOf(doubt);
  accepted.add(doubt.number);
  if (!open().length) await save();
  pick(open()[place] ?? open().at(-1));
}

async function check() {
  if (page && (await save({ checked: true }))) pick();
  if (page?.checked) tell(say.checked);
}

// Navigation

async function go(index) {
  if (page && !(await flush())) return;
  if (index < 0 || index >= pages.length) return pick(chosen);
  at = index;
  page = null;
  if (isBundle(pages[at])) {
    pick();
    return tell(say.open_bundle);
  }
  try {
    page = await ask(`/${key(pages[at])}`);
  } catch (error) {
    tell(`${say.failed}: ${error.message}`);
  }
  tell("");
  accepted = new Set();
  pick(open()[0]);
  if (pages[at + 1] && !isBundle(pages[at + 1])) new Image().src = `pictures/${key(pages[at + 1])}`;
}

function step(by) {
  const place = open().indexOf(chosen);
  pick(open()[place < 0 ? 0 : Math.min(Math.max(place + by, 0), open().length - 1)]);
}

function walk(by) {
  const all = [...$("text").querySelectorAll("[data-target]")];
  const now = all.findIndex((one) => one.classList.contains("now"));
  const next = all[Math.min(Math.max(now + by, 0), all.length - 1)];
  if (next) pickTarget(next.dataset.target);
}

function pickTarget(target) {
  const doubt = open().find((one) => one.target && covers(one.target, target));
  const element = $("text").querySelector(`[data-target="${CSS.escape(target)}"]`);
  const text = element?.textContent ?? "";
  pick(doubt ?? { target, now: text, suggested: text, box: boxes.get(target) });
}

const run = /^(b\d+)t(\d+)-(\d+)$/;
function covers(whole, piece) {
  const [one, other] = [run.exec(whole), run.exec(piece)];
  if (!one || !other) return whole === piece;
  return one[1] === other[1] && +one[2] <= +other[2] && +other[3] <= +one[3];
}

function pick(what) {
  chosen = what;
  show();
}

// View

let shownPage = null, boxes = new Map();

function show() {
  showList();
  if (shownPage !== page) showPage();
  const settled = page && !open().length;
  const others = open().length ? `${open().indexOf(chosen) + 1} ${say.of} ${open().length}` : "";
  $("where").textContent = page ? `${at + 1} ${say.of} ${pages.length} · ${named(pages[at])} · ${page.verdict}${others && ` · ${say.doubt} ${others}`}` : isBundle(pages[at]) ? `${at + 1} ${say.of} ${pages.length} · ${named(pages[at])}` : "";
  $("reason").textContent = chosen ? (chosen.reason ? say[chosen.reason] : say.word) : !pages.length ? say.none : settled ? say.settled : "";
  $("now").textContent = chosen?.now || (chosen?.reason === "uncovered" ? say.nothing : "");
  $("other").textContent = chosen?.other ?? "";
  $("entry").value = chosen?.suggested ?? "";
  $("entry").disabled = $("save").disabled = !chosen?.target;
  $("doubts").replaceChildren(...(page?.doubts ?? []).map((doubt) => {
    const button = made("button", { type: "button", textContent: `${say[doubt.reason]}: ${doubt.text || doubt.other || place(doubt.box)}`, onclick: () => pick(doubt) });
    button.setAttribute("aria-current", doubt === chosen);
    button.classList.toggle("settled", accepted.has(doubt.number));
    return made("li", {}, button);
  }));
  for (const element of document.querySelectorAll("[data-target]")) {
    const target = element.dataset.target;
    element.classList.toggle("now", Boolean(chosen?.target && covers(chosen.target, target)));
    element.classList.toggle("doubted", open().some((doubt) => doubt.target && covers(doubt.target, target)));
  }
  $("text").querySelector(".now")?.scrollIntoView({ block: "nearest" });
  look();
}

function place(box) {
  if (!box) return "";
  const third = (from, to, whole) => Math.min(2, Math.max(0, Math.floor((3 * (from + to)) / (2 * whole))));
  return `${say.rows[third(box[1], box[3], page.height)]} ${say.columns[third(box[0], box[2], page.width)]}`;
}

function showList() {
  $("list").replaceChildren(...pages.map((one, index) => {
    const state = one.checked ? "✓" : isBundle(one) && one.doubts ? say.conflict : `${one.verdict ?? ""} ${one.doubts || ""}`;
    const about = [state, one.document_type, ...Object.values(one.metadata)].filter(Boolean).join(" · ");
    const button = made("button", { type: "button", onclick: () => act(() => go(index).then(() => isBundle(one) && openBundle())) },
      made("b", { textContent: named(one) }), made("small", { textContent: about }));
    button.setAttribute("aria-current", index === at);
    return made("li", {}, button);
  }));
  $("list").querySelector("[aria-current=true]")?.scrollIntoView({ block: "nearest" });
}

function showPage() {
  shownPage = page;
  boxes = new Map();
  $("text").replaceChildren(...(page ? [...page.blocks.map(block), fields()] : []));
  if (!page) return $("sheet").replaceChildren();
  const image = drawn("image", { href: `pictures/${key(pages[at])}`, width: page.width, height: page.height });
  $("picture").ariaBusy = true;
  image.onload = () => { $("picture").ariaBusy = false; };
  image.onerror = () => { $("picture").ariaBusy = false; tell(say.no_picture); };
  $("sheet").setAttribute("aria-label", `${say.picture} ${page.number}`);
  for (const doubt of page.doubts) if (doubt.target && doubt.box && !boxes.has(doubt.target)) boxes.set(doubt.target, doubt.box);
  $("sheet").replaceChildren(image, ...[...boxes].map(([target, [left, top, right, bottom]]) => {
    const rect = drawn("rect", { x: left - 3, y: top - 3, width: right - left + 6, height: bottom - top + 6 });
    rect.dataset.target = target;
    return rect;
  }));
}

function piece(name, one, box = one.box) {
  if (box) boxes.set(one.target, box);
  const element = made(name, { textContent: one.text });
  element.dataset.target = one.target;
  return element;
}

function block(one) {
  if (one.tokens) {
    const name = one.kind === "title" ? "h2" : one.kind === "heading" ? "h3" : "p";
    return made(name, { className: one.kind }, ...one.tokens.flatMap((token) => [token.gap, piece("span", token)]));
  }
  const rows = Array.from({ length: one.rows }, () => made("tr"));
  for (const cell of one.cells) {
    rows[cell.row].append(Object.assign(piece("td", cell), { rowSpan: cell.row_span, colSpan: cell.column_span }));
  }
  return made("table", {}, made("tbody", {}, ...rows));
}

function fields() {
  return made("dl", {}, ...page.fields.flatMap((field) => [
    made("dt", { textContent: field.path }), made("dd", {}, piece("span", field, field.boxes[0])),
  ]));
}

function look() {
  if (!page) return;
  const [left, top, right, bottom] = (scale > 1 && chosen?.box) || [0, 0, page.width, page.height];
  frame((left + right) / 2, (top + bottom) / 2);
}

function frame(x, y) {
  const [width, height] = [page.width / scale, page.height / scale];
  const within = (start, size, whole) => Math.min(Math.max(start, 0), whole - size);
  view = [within(x - width / 2, width, page.width), within(y - height / 2, height, page.height), width, height];
  $("sheet").setAttribute("viewBox", view.join(" "));
}

function zoom(factor, fixed) {
  if (!page) return;
  const middle = [view[0] + view[2] / 2, view[1] + view[3] / 2];
  const before = scale;
  scale = Math.min(Math.max(scale * factor, 1), 12);
  frame(...middle.map((one, axis) => (fixed ? fixed[axis] + ((one - fixed[axis]) * before) / scale : one)));
}

function zoomToDoubt() {
  const box = chosen?.box;
  scale = scale > 1 || !page ? 1 : box ? Math.min(1 / 0.35, page.width / ((box[2] - box[0]) * 1.3)) : 2;
  scale = Math.max(scale, 1);
  look();
}

// Keyboard and mouse, one event at a time

let doing = Promise.resolve();
const act = (work) => { doing = doing.then(work).catch((error) => tell(`${say.failed}: ${error.message}`)); };

function enterEntry() {
  if (isBundle(pages[at])) return openBundle();
  if ($("entry").disabled) return;
  $("entry").focus();
  $("entry").select();
}
function leaveEntry() { $("entry").blur(); }

const KEYS = {
  j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1),
  ArrowRight: () => walk(1), ArrowLeft: () => walk(-1), e: enterEntry, Enter: enterEntry,
  a: accept, w: check, n: () => go(at + 1), p: () => go(at - 1), "?": () => $("help").showModal(),
  z: zoomToDoubt, "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), 0: () => zoom(0),
};

document.addEventListener("keydown", (event) => {
  if (event.target === $("entry")) {
    if (event.key === "Escape") act(() => { leaveEntry(); show(); });
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    return act(correct);
  }
  const onButton = event.target.closest?.("button") && ["Enter", " "].includes(event.key);
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open || onButton || !KEYS[event.key]) return;
  event.preventDefault();
  act(KEYS[event.key]);
});
document.addEventListener("click", (event) => {
  const target = event.target.closest?.("[data-target]")?.dataset.target;
  const pressed = event.target.closest?.("[data-key]")?.dataset.key;
  if (target) act(() => pickTarget(target));
  if (pressed) act(KEYS[pressed]);
});
for (const [name, hot] of [["mouseover", true], ["mouseout", false]]) {
  document.addEventListener(name, (event) => {
    const target = event.target.closest?.("[data-target]")?.dataset.target;
    if (target) for (const one of document.querySelectorAll(`[data-target="${CSS.escape(target)}"]`)) one.classList.toggle("hot", hot);
  });
}
$("sheet").addEventListener("wheel", (event) => {
  event.preventDefault();
  const spot = new DOMPoint(event.clientX, event.clientY).matrixTransform($("sheet").getScreenCTM().inverse());
  zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, [spot.x, spot.y]);
}, { passive: false });
$("sheet").addEventListener("pointermove", (event) => {
  if (event.buttons !== 1 || scale === 1) return;
  const pixels = $("sheet").getScreenCTM().a;
  frame(view[0] + view[2] / 2 - event.movementX / pixels, view[1] + view[3] / 2 - event.movementY / pixels);
});
$("form").addEventListener("submit", (event) => { event.preventDefault(); act(correct); });
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "hidden" && accepted.size) act(save);
});

document.documentElement.lang = language;
for (const element of document.querySelectorAll("[data-say]")) element.textContent = say[element.dataset.say];
for (const element of document.querySelectorAll("[data-label]")) element.setAttribute("aria-label", say[element.dataset.label]);
$("keys").append(...Object.entries(say.keys).flatMap(([name, what]) => [made("dt", { textContent: name }), made("dd", { textContent: what })]));
$("picture").dataset.busy = say.loading;
$("home").hidden = !location.pathname.startsWith("/desk/"); // part of the gateway's page, not of `pecia review`
act(async () => {
  pages = await ask("");
  const asked = new URLSearchParams(location.search);
  const first = asked.has("job")
    ? pages.findIndex((one) => one.job_id === asked.get("job") && one.number === Number(asked.get("page")))
    : pages.findIndex((one) => !isBundle(one) || one.verdict === "review");
  await go(Math.max(first, 0));
  show();
});
