// A bundle as a strip of pages. What the server sends is only ever set as text.
const WORDS = {
  en: {
    strip: "Pages by document", picture: "The chosen page", document: "Document", back: "All open reviews (q)", help: "Help", close: "Close",
    cut: "Cut here (c)", join: "Join with the next (u)", earlier: "Page to the previous (<)", later: "Page to the next (>)",
    kind: "Kind (t)", patient: "Patient (w)", accept: "Confirm (a)", following: "Next doubt (j)", reason: "Reason",
    name: "Name", born: "Born", record: "Record number", other_patient: "Another patient", refused: "These pages name different patients, or an unexpected one. Do they belong to one patient anyway?", same: "One patient (Enter)", leave: "Cancel (Esc)",
    page: "page", nobody: "names nobody", begins: "begins", unknown: "unknown patient", separators: "Separator sheets", saved: "Saved as revision",
    stale: "This bundle was changed elsewhere: check it again.", failed: "The action failed", settled: "No document is in doubt.",
    choose_kind: "Kind of the document", choose_patient: "Patient of the document", by_person: "set by a person", decided: "one patient by decision of",
    doubt: { identity_conflict: "patient in conflict", cut: "cut in doubt", kind: "kind in doubt" }, pages: "pages", documents: "Documents", unsure: "in doubt",
    kinds: { prescription: "prescription", diagnosis: "diagnosis", lab_result: "laboratory result", chart: "chart", letter: "letter", invoice: "invoice", consent: "consent", other: "other" },
    keys: { "→ ←": "next, previous page", "j k": "next, previous document in doubt", c: "a document begins at this page", u: "the next document goes on from this one",
      "> <": "this page is of the next, previous document; so do Shift and an arrow", "t w": "kind and patient of the document",
      a: "the document is right as it is", r: "reason of the next correction", Enter: "review this page", q: "all that waits for review", "?": "this help" },
  },
  ko: {
    strip: "문서별 페이지", picture: "선택한 페이지", document: "문서", back: "검토 목록 (q)", help: "도움말", close: "닫기",
    cut: "여기서 나누기 (c)", join: "다음 문서와 합치기 (u)", earlier: "앞 문서로 (<)", later: "다음 문서로 (>)",
    kind: "종류 (t)", patient: "환자 (w)", accept: "맞음 (a)", following: "다음 의심 (j)", reason: "이유",
    name: "이름", born: "생년월일", record: "등록번호", other_patient: "다른 환자", refused: "이 페이지들에는 서로 다른 환자나 예상과 다른 환자의 이름이 있습니다. 그래도 한 환자의 것입니까?", same: "같은 환자 (Enter)", leave: "그대로 두기 (Esc)",
    page: "페이지", nobody: "이름 없음", begins: "시작", unknown: "알 수 없는 환자", separators: "구분지", saved: "저장됨, 개정",
    stale: "다른 사람이 이 묶음을 바꾸었습니다. 다시 보십시오.", failed: "처리하지 못했습니다", settled: "의심되는 문서가 없습니다.",
    choose_kind: "문서의 종류", choose_patient: "문서의 환자", by_person: "사람이 정함", decided: "같은 환자로 결정한 사람",
    doubt: { identity_conflict: "환자 불일치", cut: "경계가 불확실함", kind: "종류가 불확실함" }, pages: "페이지", documents: "문서", unsure: "의심",
    kinds: { prescription: "처방전", diagnosis: "진단서", lab_result: "검사 결과", chart: "기록지", letter: "의뢰서", invoice: "계산서", consent: "동의서", other: "기타" },
    keys: { "→ ←": "다음, 이전 페이지", "j k": "다음, 이전 의심 문서", c: "이 페이지에서 문서가 시작됨", u: "다음 문서와 합치기",
      "> <": "이 페이지를 다음, 앞 문서로; Shift와 화살표도 가능", "t w": "문서의 종류와 환자",
      a: "문서가 그대로 맞음", r: "다음 수정의 이유", Enter: "이 페이지 검토", q: "검토 목록", "?": "도움말" },
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
const job = new URLSearchParams(location.search).get("job");
const tell = (text) => { $("status").textContent = text; };

let split = null, at = 0; // `at`: the number of the chosen page
const images = new Map(); // kept, so that no page is drawn again

const numbers = () => split.documents.flatMap((one) => one.pages);
const chosen = () => split.documents.find((one) => one.pages.includes(at));
const neighbour = (by) => split.documents.find((one) => one.number === chosen().number + by);
const signs = (number) => split.page_signs.find((one) => one.number === number) ?? { begins: 0, patients: [] };
const reasons = (one) => one.doubts.map((doubt) => doubt.reason);
const percent = (value) => `${Math.round(100 * value)} %`;
const called = (number) => split.patients[number - 1]?.name ?? split.patients[number - 1]?.record_numbers[0] ?? `${say.patient} ${number}`;
const patientOf = (one) => one.identity.name ?? one.identity.record_numbers[0] ?? say.unknown;

async function ask(body) {
  const sent = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(`api/bundles/${encodeURIComponent(job)}`, sent);
  if (answer.ok) return answer.json();
  const problem = await answer.json().catch(() => ({}));
  throw Object.assign(new Error(problem.detail ?? answer.statusText), { code: problem.code });
}

// Decisions

async function correct(change) {
  const body = { revision: split.revision?.number ?? 0, change: { reason: $("reason").value, ...change } };
  try {
    split = await ask(body);
  } catch (error) {
    if (error.code === "identity_conflict" && !change.same_patient) return confirm(change);
    if (error.code !== "stale") return tell(`${say.failed}: ${error.message}`);
    split = await ask();
    show();
    return tell(say.stale);
  }
  $("reason").value = "";
  if (!numbers().includes(at)) at = numbers()[0];
  show();
  tell(`${say.saved} ${split.revision.number}`);
}

function confirm(change) {
  $("refusal").textContent = `${say.doubt.identity_conflict}: ${say.refused}`;
  $("decision").value = $("reason").value;
  $("confirm").returnValue = "";
  $("confirm").onclose = () => {
    if ($("confirm").returnValue === "decided") act(() => correct({ ...change, reason: $("decision").value, same_patient: true }));
  };
  $("confirm").showModal();
  $("decision").focus();
}

function move(by) {
  const to = neighbour(by);
  if (to) return correct({ action: "move", page: at, document: to.number });
}

function choose(title, options, take) {
  $("choose").querySelector("h2").textContent = title;
  $("choose").querySelector("ol").replaceChildren(...options.map(([value, text], index) => {
    const button = made("button", { type: "button", textContent: index < 9 ? `${index + 1} ${text}` : text });
    button.onclick = () => { $("choose").close(); act(() => take(value)); };
    return made("li", {}, button);
  }));
  $("choose").setAttribute("aria-label", title);
  $("choose").showModal();
}

function chooseKind() {
  $("person").hidden = true;
  const document = chosen().number;
  choose(say.choose_kind, Object.entries(say.kinds), (kind) => correct({ action: "kind", document, kind }));
}

function choosePatient() {
  $("person").hidden = false;
  $("person").reset();
  const document = chosen().number;
  $("person").onsubmit = () => {
    const given = Object.fromEntries(new FormData($("person")));
    const identity = { name: given.name || null, birth_date: given.birth_date || null, record_numbers: given.record ? [given.record] : [] };
    act(() => correct({ action: "patient", document, identity }));
  };
  const known = split.patients.map((one, index) => [index + 1, [called(index + 1), one.birth_date, ...one.record_numbers].filter(Boolean).join(" · ")]);
  choose(say.choose_patient, known, (patient) => correct({ action: "patient", document, patient }));
}

// View

function show() {
  const doubted = split.documents.filter((one) => one.doubts.length);
  const conflicts = doubted.filter((one) => reasons(one).includes("identity_conflict"));
  $("where").textContent = `${say.documents}: ${split.documents.length} · ${say.unsure}: ${doubted.length} · ${say.doubt.identity_conflict}: ${conflicts.length}`;
  $("strip").replaceChildren(...split.documents.map(group), ...(split.separators.length ? [sheets()] : []));
  const one = chosen(), page = signs(at);
  const named = page.patients.map(called).join(", ") || say.nobody;
  $("about").textContent = `${say.document} ${one.number}: ${about(one)} · ${say.page} ${at}: ${named} · ${say.begins} ${percent(page.begins)}`;
  const decisions = split.decisions.filter((each) => each.pages.some((number) => one.pages.includes(number)));
  $("doubts").textContent = [
    ...one.doubts.map((each) => `${say.doubt[each.reason]} (${say.pages} ${each.pages.join(", ")})`),
    ...decisions.map((each) => `${say.decided} ${each.by}${each.reason ? `: ${each.reason}` : ""}`),
  ].join(" · ");
  $("large").alt = `${say.page} ${at}`;
  $("large").src = picture(at);
  const next = numbers()[numbers().indexOf(at) + 1];
  if (next) new Image().src = picture(next);
  const button = $("strip").querySelector("[aria-current=true]");
  button?.focus({ preventScroll: true });
  button?.scrollIntoView({ block: "nearest" });
}

const picture = (number) => `pictures/${encodeURIComponent(job)}/${number}`;
const about = (one) => `${say.kinds[one.kind]} (${percent(one.kind_probability)}) · ${patientOf(one)}${one.date ? ` · ${one.date}` : ""}`;

function group(one) {
  const why = reasons(one);
  const cut = one.cut.signs.includes("person") ? say.by_person : percent(one.cut.probability);
  const section = made("section", { className: "document" },
    made("h2", { textContent: `${one.number} · ${say.kinds[one.kind]} · ${say.begins} ${cut}` }),
    made("p", { textContent: patientOf(one) }),
    made("p", { className: "marks", textContent: why.map((each) => say.doubt[each]).join(", ") }),
    made("div", { className: "pages" }, ...one.pages.map((number) => thumbnail(number, one))));
  section.setAttribute("aria-label", `${say.document} ${one.number}`);
  section.classList.toggle("unsure", why.length > 0);
  section.classList.toggle("conflict", why.includes("identity_conflict"));
  return section;
}

function sheets() {
  const section = made("section", { className: "separators" }, made("p", { textContent: `${say.separators}: ${split.separators.join(", ")}` }));
  section.setAttribute("aria-label", say.separators);
  return section;
}

function thumbnail(number, one) {
  if (!images.has(number)) images.set(number, made("img", { loading: "lazy", alt: "", src: `${picture(number)}?small` }));
  const begins = number === one.pages[0] ? "" : ` · ${percent(signs(number).begins)}`;
  const button = made("button", { type: "button", onclick: () => act(() => go(number)) }, images.get(number), `${number}${begins}`);
  button.setAttribute("aria-label", `${say.page} ${number}`);
  button.setAttribute("aria-current", number === at);
  button.classList.toggle("strange", one.doubts.some((each) => each.reason === "identity_conflict" && each.pages.includes(number)));
  return button;
}

// Navigation

function go(number) {
  at = number;
  tell("");
  show();
}

function step(by) {
  const all = numbers();
  go(all[Math.min(Math.max(all.indexOf(at) + by, 0), all.length - 1)]);
}

function stepDoubt(by) {
  const here = chosen().number;
  const doubted = split.documents.filter((one) => one.doubts.length && (by > 0 ? one.number > here : one.number < here));
  const next = by > 0 ? doubted[0] : doubted.at(-1);
  const any = split.documents.find((one) => one.doubts.length);
  if (next ?? any) go((next ?? any).pages[0]);
  if (!any) tell(say.settled);
}

const KEYS = {
  ArrowRight: () => step(1), ArrowLeft: () => step(-1), j: () => stepDoubt(1), k: () => stepDoubt(-1),
  c: () => correct({ action: "cut", page: at }),
  u: () => { const next = neighbour(1); return next && correct({ action: "join", page: next.pages[0] }); },
  ">": () => move(1), "<": () => move(-1), t: chooseKind, w: choosePatient,
  a: () => correct({ action: "accept", document: chosen().number }), r: () => $("reason").focus(),
  Enter: () => { location.href = `./?page=${at}&job=${encodeURIComponent(job)}`; }, q: () => { location.href = "./"; },
  "?": () => $("help").showModal(),
};

let doing = Promise.resolve();
const act = (work) => { doing = doing.then(work).catch((error) => tell(`${say.failed}: ${error.message}`)); };

document.addEventListener("keydown", (event) => {
  const dialog = document.querySelector("dialog[open]");
  if (dialog) {
    const button = dialog.id === "choose" && event.target.tagName !== "INPUT" && dialog.querySelectorAll("ol button")[event.key - 1];
    if (!button) return;
    event.preventDefault();
    return button.click();
  }
  if (event.target.tagName === "INPUT") {
    if (["Enter", "Escape"].includes(event.key)) show();
    return;
  }
  const key = event.shiftKey && { ArrowRight: ">", ArrowLeft: "<" }[event.key] || event.key;
  const onButton = event.target.closest?.("button, a") && ["Enter", " "].includes(event.key) && !event.target.closest("#strip");
  if (event.ctrlKey || event.metaKey || event.altKey || onButton || !split || !KEYS[key]) return;
  event.preventDefault();
  act(KEYS[key]);
});
document.addEventListener("click", (event) => {
  const pressed = event.target.closest?.("[data-key]")?.dataset.key;
  if (pressed && split) act(KEYS[pressed]);
});
$("leave").onclick = () => $("confirm").close();

document.documentElement.lang = language;
for (const element of document.querySelectorAll("[data-say]")) element.textContent = say[element.dataset.say];
for (const element of document.querySelectorAll("[data-label]")) element.setAttribute("aria-label", say[element.dataset.label]);
$("keys").append(...Object.entries(say.keys).flatMap(([name, what]) => [made("dt", { textContent: name }), made("dd", { textContent: what })]));
act(async () => {
  split = await ask();
  const inConflict = split.documents.find((one) => reasons(one).includes("identity_conflict"));
  at = (inConflict ?? split.documents.find((one) => one.doubts.length) ?? split.documents[0]).pages[0];
  show();
});
