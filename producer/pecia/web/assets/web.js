// The gateway's page. What the server sends is only ever set as text.
const WORDS = {
  en: {
    sign_in: "Sign in", sign_out: "Sign out", key: "Key", key_hint: "A key comes from `pecia access create`. It stays in this browser until you sign out.",
    send: "Read documents", drop: "Drop files or a folder here, or choose:", files: "Choose files", folder: "Choose a folder", sending: "Sending",
    lane: "Priority", kind: "Kind", document_type: "Document", language: "Language", batch: "Batch name", fields: "Fields", preset: "Preset",
    schema: "JSON schema of the fields", jobs: "Jobs", state: "State", in_batch: "Only of batch", document: "Document", pages: "Pages",
    submitted: "Submitted", actions: "Actions", more: "Older jobs", all: "all", none: "none", review: "Pages and text", doubts: "to review",
    cancel: "Cancel", retry: "Run again", download: "Download as", taken: "pages today", sent: "sent", refused: "refused", nothing: "No jobs yet.",
    failed: "That could not be done", no_schema: "The schema of the fields is not JSON", of: "of", counted: "jobs",
    kinds: { "document.read": "document", "bundle.read": "many documents in one file", "video.caption": "video" },
    types: { "": "any", prescription: "prescription", diagnosis: "diagnosis", lab_result: "laboratory result", chart: "chart", mixed: "mixed" },
    states: { queued: "waiting", running: "being read", succeeded: "done", partial: "partly read", failed: "failed", cancelled: "cancelled", expired: "expired" },
    lanes: { urgent: "urgent", normal: "normal", bulk: "bulk" },
  },
  ko: {
    sign_in: "로그인", sign_out: "로그아웃", key: "키", key_hint: "키는 `pecia access create`로 만듭니다. 로그아웃할 때까지 이 브라우저에 남습니다.",
    send: "문서 읽기", drop: "파일이나 폴더를 여기에 놓거나 선택하십시오:", files: "파일 선택", folder: "폴더 선택", sending: "전송 중",
    lane: "우선순위", kind: "종류", document_type: "문서", language: "언어", batch: "배치 이름", fields: "필드", preset: "사전 설정",
    schema: "필드의 JSON 스키마", jobs: "작업", state: "상태", in_batch: "이 배치만", document: "문서", pages: "페이지",
    submitted: "제출", actions: "동작", more: "이전 작업", all: "모두", none: "없음", review: "페이지와 텍스트", doubts: "검토 필요",
    cancel: "취소", retry: "다시 실행", download: "내려받기", taken: "오늘 페이지", sent: "전송됨", refused: "거부됨", nothing: "아직 작업이 없습니다.",
    failed: "처리하지 못했습니다", no_schema: "필드의 스키마가 JSON이 아닙니다", of: "/", counted: "작업",
    kinds: { "document.read": "문서", "bundle.read": "여러 문서가 든 파일", "video.caption": "비디오" },
    types: { "": "모든 종류", prescription: "처방전", diagnosis: "진단서", lab_result: "검사 결과", chart: "차트", mixed: "혼합" },
    states: { queued: "대기", running: "읽는 중", succeeded: "완료", partial: "일부 완료", failed: "실패", cancelled: "취소됨", expired: "만료됨" },
    lanes: { urgent: "긴급", normal: "보통", bulk: "대량" },
  },
};
const text = (description) => ({ type: ["string", "null"], description });
const object = (properties) => ({ type: "object", properties, required: Object.keys(properties) });
const PRESETS = {
  lab_result: object({
    patient: text("The patient's name"), date: text("Date of the report"),
    results: { type: "array", items: object({ test: text("Name of the test"), value: text("Value"), unit: text("Unit"), range: text("Reference range") }) },
  }),
  prescription: object({
    patient: text("The patient's name"), date: text("Date"),
    drugs: { type: "array", items: object({ name: text("Drug"), dose: text("Dose with its unit"), schedule: text("How often") }) },
  }),
};
const FORMATS = ["pdf", "text", "markdown", "csv", "json", "html", "hocr"], VIDEO_FORMATS = ["srt", "vtt", "text", "json"];
const OPEN = ["queued", "running"], PAGE = 100, AT_ONCE = 20, EVERY_MS = 2000;

const language = navigator.language.startsWith("ko") ? "ko" : "en";
const say = WORDS[language];
const $ = (id) => document.getElementById(id);
const tell = (words) => { $("status").textContent = words; };
const made = (name, props = {}, ...children) => {
  const element = Object.assign(document.createElement(name), props);
  element.append(...children);
  return element;
};

let own = null, jobs = [], following = null, doubts = new Map(), timer = 0, sending = false;
const may = (scope) => own.key.scopes.includes(scope);

async function ask(path, how = {}) {
  const answer = await fetch(path, how);
  if (answer.status === 401 && path !== "/session") leave();
  if (!answer.ok) {
    const problem = await answer.json().catch(() => ({}));
    const why = (problem.errors ?? []).map((one) => `${one.where}: ${one.message}`).join("; ");
    throw new Error([problem.detail ?? problem.title ?? answer.statusText, why].filter(Boolean).join(" "));
  }
  return answer.status === 204 ? null : answer.json();
}
const sent = (body, method = "POST") => ({ method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
const act = (work) => Promise.resolve().then(work).catch((error) => tell(`${say.failed}: ${error.message}`));

// Who one is

async function enter() {
  own = await ask("/v1/key");
  $("who").textContent = `${own.key.tenant} / ${own.key.name}${own.key.pages_per_day ? ` · ${own.pages_of_day} ${say.of} ${own.key.pages_per_day} ${say.taken}` : ""}`;
  $("sign-in").hidden = true;
  $("sign-out").hidden = false;
  $("send").hidden = !may("submit");
  $("jobs").hidden = !may("read");
  $("lane").replaceChildren(...own.key.lanes.map((lane) => made("option", { value: lane, textContent: say.lanes[lane] ?? lane, selected: lane === "normal" })));
  tell("");
  await refresh();
}

function leave() {
  own = null;
  clearTimeout(timer);
  for (const id of ["send", "jobs", "sign-out"]) $(id).hidden = true;
  $("sign-in").hidden = false;
  $("who").textContent = "";
  $("key").focus();
}

async function signIn(key) {
  await ask("/session", sent({ key }));
  $("key").value = "";
  await enter();
}

// What is sent

async function entriesOf(entry) {
  if (entry.isFile) return [await new Promise((done, fail) => entry.file(done, fail))];
  const reader = entry.createReader(), found = [];
  for (;;) {
    const some = await new Promise((done, fail) => reader.readEntries(done, fail));
    if (!some.length) break;
    found.push(...some);
  }
  return (await Promise.all(found.map(entriesOf))).flat();
}

function taskOf() {
  const task = { kind: $("kind").value };
  if (task.kind !== "video.caption") {
    if ($("document-type").value) task.document_type = $("document-type").value;
    if ($("language").value.trim()) task.language = $("language").value.trim();
    if ($("schema").value.trim()) {
      try { task.fields = JSON.parse($("schema").value); } catch { throw new Error(say.no_schema); }
    }
  }
  return task;
}

async function send(files) {
  const chosen = files.filter((file) => !file.name.startsWith("."));
  if (!chosen.length || sending) return;
  const request = { task: taskOf(), priority: $("lane").value };
  const batch = $("batch").value.trim();
  if (batch || chosen.length > 1) request.batch = batch || `web ${new Date().toISOString().slice(0, 19).replace("T", " ")}`;
  sending = true;
  $("sending").hidden = false;
  let safe = 0, refused = [];
  try {
    for (let start = 0; start < chosen.length; start += AT_ONCE) {
      $("sending").value = start / chosen.length;
      const form = new FormData();
      form.append("request", JSON.stringify(request));
      for (const file of chosen.slice(start, start + AT_ONCE)) form.append("file", file, file.name);
      const answer = await ask("/v1/documents", { method: "POST", body: form });
      safe += answer.jobs.length;
      refused.push(...answer.refused.map((one) => `${chosen[start + one.number].name}: ${one.problem.detail}`));
    }
  } finally {
    sending = false;
    $("sending").hidden = true;
    for (const id of ["files", "folder"]) $(id).value = "";
  }
  await refresh();
  tell([`${safe} ${say.of} ${chosen.length} ${say.sent}`, ...(refused.length ? [`${refused.length} ${say.refused}: ${refused.slice(0, 3).join(" · ")}`] : [])].join(". "));
}

// What there is

function query(more) {
  const asked = new URLSearchParams({ limit: PAGE, ...more });
  if ($("state").value) asked.append("state", $("state").value);
  if ($("in-batch").value.trim()) asked.append("batch", $("in-batch").value.trim());
  return asked;
}

async function refresh() {
  clearTimeout(timer);
  if (!own || !may("read")) return;
  try {
    const asked = query({});
    const [listed, counts, pages] = await Promise.all([
      ask(`/v1/jobs?${asked}`),
      ask(`/v1/counts?${new URLSearchParams([...asked].filter(([name]) => name !== "limit"))}`),
      may("review") ? ask("/v1/pages?limit=500") : { pages: [] },
    ]);
    const known = new Set(listed.jobs.map((job) => job.id));
    const older = jobs.slice(PAGE).filter((job) => !known.has(job.id));
    if (!older.length) following = listed.next;
    jobs = [...listed.jobs, ...older];
    doubts = new Map();
    for (const page of pages.pages) doubts.set(page.job_id, (doubts.get(page.job_id) ?? 0) + 1);
    showCounts(counts);
    show();
  } finally {
    if (own) timer = setTimeout(() => act(refresh), jobs.some((job) => OPEN.includes(job.state)) ? EVERY_MS : EVERY_MS * 5);
  }
}

async function older() {
  const listed = await ask(`/v1/jobs?${query({ before: following })}`);
  jobs.push(...listed.jobs);
  following = listed.next;
  show();
}

function showCounts(counts) {
  const states = Object.entries(counts.states).filter(([, number]) => number);
  $("counts").textContent = states.map(([state, number]) => `${number} ${say.states[state] ?? state}`).join(" · ");
}

let rows = new Map();

function show() {
  const next = new Map();
  for (const job of jobs) {
    const signs = JSON.stringify([job.state, job.progress, doubts.get(job.id)]);
    const row = rows.get(job.id);
    next.set(job.id, row?.signs === signs ? row : { signs, element: rowOf(job) });
  }
  rows = next;
  const elements = [...rows.values()].map((row) => row.element);
  if (elements.some((element, index) => element !== $("rows").children[index]) || elements.length !== $("rows").children.length) {
    const focus = document.activeElement?.dataset?.action;
    $("rows").replaceChildren(...elements);
    if (focus) document.querySelector(`[data-action="${CSS.escape(focus)}"]`)?.focus();
  }
  $("more").hidden = !following;
  if (!jobs.length) $("rows").replaceChildren(made("tr", {}, made("td", { colSpan: 5, textContent: say.nothing })));
}

function rowOf(job) {
  const name = job.label ?? job.id;
  const { total, done, failed, cancelled } = job.progress;
  const over = done + failed + cancelled;
  const pages = made("td", { textContent: total ? `${over} ${say.of} ${total}` : "" });
  if (total && OPEN.includes(job.state)) pages.append(made("progress", { value: over, max: total, ariaLabel: `${name}: ${over} ${say.of} ${total}` }));
  if (doubts.get(job.id)) pages.append(made("small", { textContent: `${doubts.get(job.id)} ${say.doubts}` }));
  const state = made("td", {}, made("span", { className: job.state, textContent: say.states[job.state] ?? job.state }));
  if (job.failure) state.append(made("small", { textContent: `${job.failure.code}: ${job.failure.message ?? ""}` }));
  return made("tr", {},
    made("td", { textContent: name }), state, pages,
    made("td", { textContent: new Date(job.submitted_at).toLocaleString(language) }),
    made("td", {}, actionsOf(job, name)));
}

function actionsOf(job, name) {
  const all = made("div", { className: "actions" });
  const button = (word, work) => {
    const element = made("button", { type: "button", textContent: say[word], ariaLabel: `${say[word]}: ${name}`, onclick: () => act(work) });
    element.dataset.action = `${word}-${job.id}`;
    all.append(element);
  };
  if (OPEN.includes(job.state)) {
    if (may("submit")) button("cancel", async () => { await ask(`/v1/jobs/${job.id}/cancel`, sent({})); await refresh(); });
    return all;
  }
  const read = ["succeeded", "partial"].includes(job.state);
  if (read && may("review") && job.kind !== "video.caption") {
    const link = made("a", { href: `/desk/${job.id}/`, textContent: say.review, ariaLabel: `${say.review}: ${name}` });
    link.dataset.action = `review-${job.id}`;
    all.append(link);
  }
  if (read) {
    const forms = job.kind === "video.caption" ? VIDEO_FORMATS : FORMATS;
    const select = made("select", { ariaLabel: `${say.download}: ${name}` },
      made("option", { value: "", textContent: say.download }), ...forms.map((form) => made("option", { value: form, textContent: form })));
    select.dataset.action = `download-${job.id}`;
    select.onchange = () => {
      const form = select.value;
      select.value = "";
      if (form) act(() => download(job, form, name));
    };
    all.append(select);
  }
  if (["failed", "partial", "cancelled"].includes(job.state) && may("submit")) {
    button("retry", async () => { await ask(`/v1/jobs/${job.id}/retry`, sent({})); await refresh(); });
  }
  return all;
}

async function download(job, form, name) {
  tell(`${say.download} ${form}: ${name}`);
  const answer = await fetch(`/v1/jobs/${job.id}/result?format=${form}`);
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).detail ?? answer.statusText);
  const ending = { text: "txt", markdown: "md", hocr: "hocr.html" }[form] ?? form;
  const address = URL.createObjectURL(await answer.blob());
  made("a", { href: address, download: `${name.split("/").at(-1).replace(/\.[^.]+$/, "")}.${ending}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// Hands on keys and mouse

document.documentElement.lang = language;
for (const element of document.querySelectorAll("[data-say]")) element.textContent = say[element.dataset.say];
for (const element of document.querySelectorAll("[data-label]")) element.setAttribute("aria-label", say[element.dataset.label]);
const options = (id, entries) => $(id).replaceChildren(...entries.map(([value, textContent]) => made("option", { value, textContent })));
options("kind", Object.entries(say.kinds));
options("document-type", Object.entries(say.types));
options("state", [["", say.all], ...Object.entries(say.states)]);
options("preset", [["", say.none], ...Object.keys(PRESETS).map((name) => [name, say.types[name]])]);
$("preset").onchange = () => { $("schema").value = $("preset").value ? JSON.stringify(PRESETS[$("preset").value], null, 1) : ""; };
$("sign-in").onsubmit = (event) => { event.preventDefault(); act(() => signIn($("key").value.trim())); };
$("sign-out").onclick = () => act(async () => { await ask("/session", { method: "DELETE" }); leave(); });
$("send").onsubmit = (event) => event.preventDefault();
for (const id of ["files", "folder"]) $(id).onchange = () => act(() => send([...$(id).files]));
for (const id of ["state", "in-batch"]) $(id).onchange = () => { jobs = []; act(refresh); };
$("more").onclick = () => act(older);
for (const name of ["dragover", "dragleave", "drop"]) {
  $("drop").addEventListener(name, (event) => { event.preventDefault(); $("drop").classList.toggle("over", name === "dragover"); });
}
$("drop").addEventListener("drop", (event) => {
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
  act(async () => send((await Promise.all(entries.map(entriesOf))).flat()));
});
act(async () => {
  const key = location.hash.slice(1);
  if (key) {
    history.replaceState(null, "", "/"); // the key stays in no history
    return signIn(decodeURIComponent(key)).catch((error) => { leave(); throw error; });
  }
  const answer = await fetch("/session");
  if (answer.status === 204) await enter();
  else leave();
});
