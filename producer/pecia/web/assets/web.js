// The gateway's page. What the server sends is only ever set as text.
const WORDS = {
  en: {
    sign_in: "Sign in", sign_out: "Sign out", key: "Key", key_hint: "The operator of this gateway makes keys with “pecia access create”. The key stays in this browser until you sign out.",
    send: "Read documents", drop: "Drop files or a folder here, or choose:", files: "Choose files", folder: "Choose a folder", sending: "Sending",
    lane: "Priority", kind: "Kind", document_type: "Document", language: "Language", batch: "Batch name", fields: "Fields", preset: "Preset",
    schema: "JSON schema of the fields", jobs: "Jobs", state: "State", in_batch: "Only of batch", document: "Document", pages: "Pages",
    submitted: "Submitted", actions: "Actions", more: "Older jobs", all: "all", none: "none", review: "Pages and text", doubts: "to review",
    cancel: "Cancel", retry: "Run again", download: "Download as", taken: "pages today", sent: "sent", refused: "refused", nothing: "No jobs yet.",
    look: "Fields and tables", batches: "Batches", admin: "Administration", views: "Views", created: "Created", more_batches: "Older batches", show: "Show jobs",
    usage: "Usage", since: "Since", by: "By", group: "Group", segments: "Segments", tokens: "Tokens", engine_time: "Engine seconds", total: "total",
    keys: "Keys", name: "Name", may: "Permissions", days: "Valid for days", make_key: "Make a key", made: "The new key: copy it now, it is not shown again",
    ends: "Ends", revoke: "Revoke", revoked: "revoked", never: "never", before: "Previous page", after: "Next page", close: "Close", page: "Page",
    loading: "Loading the picture …", no_picture: "No picture of this page", text: "Text", table: "Table", attached: "Attached files that were not read", no_page: "There is no other page.", nobatch: "No batches yet.",
    scopes: { submit: "submit", read: "read", review: "review", admin: "administer" },
    sinces: { P1D: "one day", P7D: "7 days", P30D: "30 days", P365D: "a year" },
    groups: { kind: "kind", lane: "priority", engine: "engine", document_type: "document" },
    failed: "The action failed", no_schema: "The schema of the fields is not JSON", of: "of", counted: "jobs",
    kinds: { "document.read": "document", "bundle.read": "bundle of many documents", "video.caption": "video" },
    types: { "": "any", prescription: "prescription", diagnosis: "diagnosis", lab_result: "laboratory result", chart: "chart", mixed: "mixed" },
    states: { queued: "waiting", running: "being read", succeeded: "done", partial: "partly read", failed: "failed", cancelled: "cancelled", expired: "expired" },
    lanes: { urgent: "urgent", normal: "normal", bulk: "bulk" },
  },
  ko: {
    sign_in: "로그인", sign_out: "로그아웃", key: "키", key_hint: "키는 이 게이트웨이의 운영자가 “pecia access create”로 만듭니다. 로그아웃할 때까지 이 브라우저에 남습니다.",
    send: "문서 읽기", drop: "파일이나 폴더를 여기에 놓거나 선택하십시오:", files: "파일 선택", folder: "폴더 선택", sending: "전송 중",
    lane: "우선순위", kind: "종류", document_type: "문서", language: "언어", batch: "배치 이름", fields: "필드", preset: "사전 설정",
    schema: "필드의 JSON 스키마", jobs: "작업", state: "상태", in_batch: "이 배치만", document: "문서", pages: "페이지",
    submitted: "제출", actions: "동작", more: "이전 작업", all: "모두", none: "없음", review: "페이지와 텍스트", doubts: "검토 필요",
    cancel: "취소", retry: "다시 실행", download: "내려받기", taken: "오늘 페이지", sent: "전송됨", refused: "거부됨", nothing: "아직 작업이 없습니다.",
    look: "필드와 표", batches: "배치", admin: "관리", views: "보기", created: "생성", more_batches: "이전 배치", show: "작업 보기",
    usage: "사용량", since: "기간", by: "구분", group: "묶음", segments: "구간", tokens: "토큰", engine_time: "엔진 시간(초)", total: "합계",
    keys: "키", name: "이름", may: "권한", days: "유효 일수", make_key: "키 만들기", made: "새 키: 지금 복사하십시오. 다시 표시되지 않습니다",
    ends: "만료", revoke: "폐기", revoked: "폐기됨", never: "없음", before: "이전 페이지", after: "다음 페이지", close: "닫기", page: "페이지",
    loading: "그림을 불러오는 중 …", no_picture: "이 페이지의 그림이 없습니다", text: "텍스트", table: "표", attached: "읽지 않은 첨부 파일", no_page: "다른 페이지가 없습니다.", nobatch: "아직 배치가 없습니다.",
    scopes: { submit: "제출", read: "읽기", review: "검토", admin: "관리" },
    sinces: { P1D: "하루", P7D: "7일", P30D: "30일", P365D: "1년" },
    groups: { kind: "종류", lane: "우선순위", engine: "엔진", document_type: "문서" },
    failed: "처리하지 못했습니다", no_schema: "필드의 스키마가 JSON이 아닙니다", of: "/", counted: "작업",
    kinds: { "document.read": "문서", "bundle.read": "여러 문서의 묶음", "video.caption": "비디오" },
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
const FORMATS_OF = { "video.caption": VIDEO_FORMATS, "bundle.read": [...FORMATS, "fhir"] };
const ENDINGS = { text: "txt", markdown: "md", hocr: "hocr.html", fhir: "fhir.json" };
const VIEWS = ["jobs", "batches", "admin"];
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

let own = null, jobs = [], following = null, turn = 0, doubts = new Map(), timer = 0, sending = false;
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

// Sign-in

async function enter() {
  own = await ask("/v1/key");
  $("who").textContent = `${own.key.tenant} / ${own.key.name}${own.key.pages_per_day ? ` · ${own.pages_of_day} ${say.of} ${own.key.pages_per_day} ${say.taken}` : ""}`;
  $("sign-in").hidden = true;
  $("sign-out").hidden = false;
  $("send").hidden = !may("submit");
  $("views").hidden = !may("read");
  document.querySelector("[data-view=admin]").hidden = !may("admin");
  $("scopes").replaceChildren(...own.key.scopes.map((scope) => made("label", { className: "check" },
    made("input", { type: "checkbox", value: scope, checked: scope !== "admin" }), say.scopes[scope] ?? scope)));
  $("lane").replaceChildren(...own.key.lanes.map((lane) => made("option", { value: lane, textContent: say.lanes[lane] ?? lane, selected: lane === "normal" })));
  tell("");
  if (may("read")) await see("jobs");
}

async function see(view) {
  for (const id of VIEWS) {
    $(id).hidden = id !== view;
    document.querySelector(`[data-view=${id}]`).setAttribute("aria-current", id === view ? "page" : "false");
  }
  clearTimeout(timer);
  tell("");
  await { jobs: refresh, batches: listBatches, admin: administer }[view]();
}

function leave() {
  own = null;
  clearTimeout(timer);
  for (const id of ["send", "views", ...VIEWS, "sign-out", "made"]) $(id).hidden = true;
  $("secret").value = "";
  $("result").close();
  $("sign-in").hidden = false;
  $("who").textContent = "";
  $("key").focus();
}

async function signIn(key) {
  await ask("/session", sent({ key }));
  $("key").value = "";
  await enter();
}

// Uploads

async function entriesOf(entry) {
  if (entry.isFile) {
    const file = await new Promise((done, fail) => entry.file(done, fail));
    return [Object.assign(file, { dropped: entry.fullPath.slice(1) })];
  }
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

// Joins files like `pecia read --bundle`: those of a folder, and pictures; each other file is its own bundle.
function bundlesOf(files) {
  const joined = new Map(), path = (file) => file.webkitRelativePath || file.dropped || file.name;
  for (const file of [...files].sort((one, other) => path(one).localeCompare(path(other), undefined, { numeric: true }))) {
    const folder = path(file).includes("/") ? path(file).split("/")[0] : null;
    if (folder !== null && /^(video|audio|text)\//.test(file.type)) continue;
    const isPicture = file.type.startsWith("image/") && file.type !== "image/tiff";
    const key = folder !== null ? `folder ${folder}` : isPicture ? "pictures" : file;
    if (!joined.has(key)) joined.set(key, { name: folder ?? file.name, files: [] });
    joined.get(key).files.push(file);
  }
  return [...joined.values()];
}

function* loadsOf(documents) {
  let load = [], count = 0;
  for (const one of documents) {
    if (count && count + one.files.length > AT_ONCE) {
      yield load;
      [load, count] = [[], 0];
    }
    load.push(one);
    count += one.files.length;
  }
  if (count) yield load;
}

async function send(files) {
  const chosen = files.filter((file) => !file.name.startsWith("."));
  if (!chosen.length || sending) return;
  const task = taskOf(), request = { priority: $("lane").value };
  const documents = task.kind === "bundle.read" ? bundlesOf(chosen) : chosen.map((file) => ({ name: file.name, files: [file] }));
  const batch = $("batch").value.trim();
  if (batch || documents.length > 1) request.batch = batch || `web-${new Date().toISOString().slice(0, 19)}`;
  sending = true;
  $("sending").hidden = false;
  let safe = 0, begun = 0, refused = [];
  try {
    for (const load of loadsOf(documents)) {
      $("sending").value = begun / documents.length;
      begun += load.length;
      const form = new FormData();
      const tasks = load.map((one) => ({ ...task, label: one.name, ...(one.files.length > 1 ? { files: one.files.length } : {}) }));
      form.append("request", JSON.stringify({ ...request, tasks }));
      for (const file of load.flatMap((one) => one.files)) form.append("file", file, file.name);
      const answer = await ask("/v1/documents", { method: "POST", body: form });
      safe += answer.jobs.length;
      refused.push(...answer.refused.map((one) => `${load[one.number].name}: ${one.problem.detail}`));
    }
  } finally {
    sending = false;
    $("sending").hidden = true;
    for (const id of ["files", "folder"]) $(id).value = "";
  }
  await refresh();
  tell([`${safe} ${say.of} ${documents.length} ${say.sent}`, ...(refused.length ? [`${refused.length} ${say.refused}: ${refused.slice(0, 3).join(" · ")}`] : [])].join(". "));
}

// Jobs

function query(more) {
  const asked = new URLSearchParams({ limit: PAGE, ...more });
  if ($("state").value) asked.append("state", $("state").value);
  if ($("in-batch").value.trim()) asked.append("batch", $("in-batch").value.trim());
  return asked;
}

async function refresh() {
  clearTimeout(timer);
  if (!own || !may("read") || $("jobs").hidden) return;
  try {
    const asked = query({});
    const [listed, counts, pages] = await Promise.all([
      ask(`/v1/jobs?${asked}`),
      ask(`/v1/counts?${new URLSearchParams([...asked].filter(([name]) => name !== "limit"))}`),
      may("review") ? ask("/v1/pages?limit=500") : { pages: [] },
    ]);
    const known = new Set(listed.jobs.map((job) => job.id)), last = listed.jobs.at(-1)?.id ?? "";
    const older = jobs.some((job) => known.has(job.id)) ? jobs.filter((job) => job.id < last) : []; // ids go by time
    if (!older.length) following = listed.next;
    const open = older.filter((job) => OPEN.includes(job.state));
    turn = turn < open.length ? turn : 0;
    const looked = open.slice(turn, turn += PAGE);
    jobs = [...listed.jobs, ...older];
    if (looked.length) put((await ask(`/v1/jobs?${new URLSearchParams(looked.map((job) => ["id", job.id]))}`)).jobs);
    doubts = new Map();
    for (const page of pages.pages) doubts.set(page.job_id, (doubts.get(page.job_id) ?? 0) + 1);
    showCounts(counts);
    show();
  } finally {
    if (own) timer = setTimeout(() => act(refresh), jobs.some((job) => OPEN.includes(job.state)) ? EVERY_MS : EVERY_MS * 5);
  }
}

function put(some) {
  const fresh = new Map(some.map((job) => [job.id, job]));
  jobs = jobs.map((job) => fresh.get(job.id) ?? job);
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
  const { total, done, failed, cancelled } = job.progress, open = OPEN.includes(job.state);
  const over = done + failed + cancelled;
  const pages = made("td", { textContent: total ? `${open ? over : done} ${say.of} ${total}` : "" });
  if (total && open) pages.append(made("progress", { value: over, max: total, ariaLabel: `${name}: ${over} ${say.of} ${total}` }));
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
    if (may("submit")) button("cancel", async () => { put([(await ask(`/v1/jobs/${job.id}/cancel`, sent({}))).job]); await refresh(); });
    return all;
  }
  const read = ["succeeded", "partial"].includes(job.state);
  if (read && may("review") && job.kind !== "video.caption") {
    const link = made("a", { href: `/desk/${job.id}/`, textContent: say.review, ariaLabel: `${say.review}: ${name}` });
    link.dataset.action = `review-${job.id}`;
    all.append(link);
  }
  if (read && job.kind !== "video.caption") button("look", () => look(job, name, 1));
  if (read) {
    const forms = FORMATS_OF[job.kind] ?? FORMATS;
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
    button("retry", async () => { put([await ask(`/v1/jobs/${job.id}/retry`, sent({}))]); await refresh(); });
  }
  return all;
}

async function download(job, form, name) {
  tell(`${say.download} ${form}: ${name}`);
  const answer = await fetch(`/v1/jobs/${job.id}/result?format=${form}`);
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).detail ?? answer.statusText);
  const ending = ENDINGS[form] ?? form;
  const address = URL.createObjectURL(await answer.blob());
  made("a", { href: address, download: `${name.split("/").at(-1).replace(/\.[^.]+$/, "")}.${ending}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// Results beside their pages

const cell = (name, value) => made(name, { textContent: value === null || value === undefined ? "" : String(value) });
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function fieldsOf(value) {
  if (Array.isArray(value) && value.length && value.every(isObject)) {
    const names = [...new Set(value.flatMap(Object.keys))];
    return made("table", {}, made("thead", {}, made("tr", {}, ...names.map((name) => made("th", { scope: "col", textContent: name })))),
      made("tbody", {}, ...value.map((row) => made("tr", {}, ...names.map((name) => made("td", {}, fieldsOf(row[name])))))));
  }
  if (Array.isArray(value)) return made("span", { textContent: value.map((one) => (isObject(one) ? JSON.stringify(one) : one)).join(", ") });
  if (!isObject(value)) return cell("span", value);
  return made("table", {}, made("tbody", {}, ...Object.entries(value).map(([name, one]) =>
    made("tr", {}, made("th", { scope: "row", textContent: name }), made("td", {}, fieldsOf(one))))));
}

function gridOf(table) {
  const rows = Array.from({ length: table.rows }, () => made("tr"));
  for (const one of table.cells) {
    const { row_span = 1, column_span = 1 } = one;
    rows[one.row].append(made("td", { textContent: one.text, rowSpan: row_span, colSpan: column_span }));
  }
  return made("table", {}, made("tbody", {}, ...rows));
}

function contentOf(page) {
  const parts = [], title = (word) => made("h3", { textContent: say[word] });
  if (page.attachments) parts.push(made("p", { textContent: `${say.attached}: ${page.attachments}` }));
  if (page.fields) parts.push(title("fields"), fieldsOf(page.fields));
  for (const block of page.blocks.filter((one) => one.table)) parts.push(title("table"), gridOf(block.table));
  const words = page.blocks.filter((one) => !one.table).map((one) => one.text).join("\n\n");
  if (words) parts.push(title("text"), made("pre", { textContent: words }));
  return parts;
}

async function look(job, name, number, step = 1) {
  const skip = step > 0 && number > 1 ? `&skip=1-${number - 1}` : "";
  const { parts } = await ask(`/v1/jobs/${job.id}/pages?limit=${step > 0 ? 1 : number}${skip}`);
  const part = parts.findLast((one) => one.stage === "read" && one.content && one.ordinal < (step > 0 ? Infinity : number));
  if (!part) {
    $(step > 0 ? "after" : "before").disabled = true; // the message is behind the dialog
    return tell(say.no_page);
  }
  const shown = part.ordinal + 1;
  $("result-title").textContent = `${name} · ${say.page} ${shown}`;
  $("picture").hidden = !may("review");
  $("beside").ariaBusy = may("review");
  $("picture").alt = `${say.page} ${shown}`;
  if (may("review")) $("picture").src = `/desk/${job.id}/pictures/${job.id}/${shown}`;
  $("content").replaceChildren(...contentOf(part.content));
  $("before").disabled = shown === 1;
  $("after").disabled = false;
  $("before").onclick = () => act(() => look(job, name, shown - 1, -1));
  $("after").onclick = () => act(() => look(job, name, shown + 1));
  if (!$("result").open) $("result").showModal();
}

// Batches

let batches = [];

async function listBatches(before) {
  const listed = await ask(`/v1/batches?limit=${AT_ONCE}${before ? `&before=${before}` : ""}`);
  batches = before ? [...batches, ...listed] : listed;
  $("batch-rows").replaceChildren(...batches.map(batchRow));
  if (!batches.length) $("batch-rows").replaceChildren(made("tr", {}, made("td", { colSpan: 5, textContent: say.nobatch })));
  $("more-batches").hidden = listed.length < AT_ONCE;
  if (!before && own) timer = setTimeout(() => act(() => !$("batches").hidden && batches.length <= AT_ONCE && listBatches()), EVERY_MS * 2);
}

function batchRow(batch) {
  const { states, parts, done, failed, cancelled } = batch.counts, name = batch.name ?? batch.id;
  const open = OPEN.some((state) => states[state]), over = done + failed + cancelled;
  const jobsOf = Object.entries(states).map(([state, number]) => `${number} ${say.states[state] ?? state}`).join(" · ");
  const pages = made("td", { textContent: parts ? `${open ? over : done} ${say.of} ${parts}` : "" });
  if (parts && open) {
    pages.append(made("progress", { value: over, max: parts, ariaLabel: `${name}: ${over} ${say.of} ${parts}` }));
  }
  if (batch.needs_review) pages.append(made("small", { textContent: `${batch.needs_review} ${say.doubts}` }));
  const show = made("button", { type: "button", textContent: say.show, ariaLabel: `${say.show}: ${name}` });
  show.onclick = () => { $("in-batch").value = name; jobs = []; act(() => see("jobs")); };
  return made("tr", {}, cell("td", name), cell("td", jobsOf), pages,
    cell("td", new Date(batch.created_at).toLocaleString(language)), made("td", {}, show));
}

// Keys and usage

async function administer() {
  const [usage, keys] = await Promise.all([ask(`/v1/usage?since=${$("since").value}&by=${$("by").value}`), ask("/v1/keys")]);
  const labels = { kind: say.kinds, lane: say.lanes, document_type: say.types }[$("by").value] ?? {};
  $("usage-rows").replaceChildren(...[...usage.groups, { ...usage.total, name: say.total }].map((sums) => made("tr", {},
    ...[labels[sums.name] ?? sums.name ?? say.none, sums.jobs, sums.pages, sums.segments, sums.tokens.prompt + sums.tokens.output,
      Math.round(sums.engine_s)].map((value) => cell("td", typeof value === "number" ? value.toLocaleString(language) : value)))));
  $("key-rows").replaceChildren(...keys.map(keyRow));
}

function keyRow({ key, pages_of_day: taken }) {
  const ends = key.revoked_at ? say.revoked : key.expires_at ? new Date(key.expires_at).toLocaleString(language) : say.never;
  const actions = made("td");
  if (!key.revoked_at) {
    const revoke = made("button", { type: "button", textContent: say.revoke, ariaLabel: `${say.revoke}: ${key.name}` });
    revoke.onclick = () => act(async () => { await ask(`/v1/keys/${key.id}`, { method: "DELETE" }); await administer(); });
    actions.append(revoke);
  }
  return made("tr", {}, cell("td", key.name), cell("td", key.scopes.map((scope) => say.scopes[scope] ?? scope).join(", ")),
    cell("td", key.pages_per_day ? `${taken} ${say.of} ${key.pages_per_day}` : taken), cell("td", ends), actions);
}

async function makeKey() {
  const days = $("key-days").value, scopes = [...$("scopes").querySelectorAll("input:checked")].map((box) => box.value);
  const body = { name: $("key-name").value, scopes, ...(days ? { expires: `P${days}D` } : {}) };
  $("secret").value = (await ask("/v1/keys", sent(body))).secret;
  $("made").hidden = false;
  $("secret").select();
  $("key-name").value = "";
  await administer();
}

// Keyboard and mouse

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
for (const button of document.querySelectorAll("[data-view]")) button.onclick = () => act(() => see(button.dataset.view));
$("more-batches").onclick = () => act(() => listBatches(batches.at(-1).id));
options("since", Object.entries(say.sinces));
options("by", Object.entries(say.groups));
for (const id of ["since", "by"]) $(id).onchange = () => act(administer);
$("new-key").onsubmit = (event) => { event.preventDefault(); act(makeKey); };
$("close").onclick = () => $("result").close();
$("beside").dataset.busy = say.loading;
$("picture").onload = () => { $("beside").ariaBusy = false; };
$("picture").onerror = () => { $("beside").ariaBusy = false; $("picture").hidden = true; tell(say.no_picture); };
for (const name of ["dragover", "dragleave", "drop"]) {
  $("drop").addEventListener(name, (event) => { event.preventDefault(); $("drop").classList.toggle("over", name === "dragover"); });
}
$("drop").addEventListener("drop", (event) => {
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
  act(async () => send((await Promise.all(entries.map(entriesOf))).flat()));
});
const begin = () => act(async () => {
  const key = location.hash.slice(1);
  if (key) {
    history.replaceState(null, "", "/"); // the key stays in no history
    return signIn(decodeURIComponent(key)).catch((error) => { leave(); throw error; });
  }
  const answer = await fetch("/session");
  if (answer.status === 204) await enter();
  else leave();
});
addEventListener("hashchange", begin); // a link that is opened in the tab of the sign-in form
begin();
