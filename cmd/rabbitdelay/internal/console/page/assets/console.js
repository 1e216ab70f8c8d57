// Adds live updates, times in the user's time zone, and keyboard shortcuts.
// Without this script, every page can still be read and every form submitted.
"use strict";
(() => {
  const root = document.documentElement;
  const year = 365 * 24 * 3600;
  const $ = (id) => document.getElementById(id);
  const keep = (name, value) => {
    document.cookie = `rabbitdelay_${name}=${encodeURIComponent(value)}; max-age=${year}; samesite=strict`;
  };

  // Texts in the language of the page.
  const texts = JSON.parse(root.dataset.texts || "{}");
  const text = (english, value) => (texts[english] || english).replace("%s", value);

  // Times. If the user has not chosen a time zone, a cookie passes the browser's zone to the server for the next page.
  let zone = root.dataset.zone;
  if (!zone) {
    zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
    keep("zone", zone);
    const field = $("zone");
    if (field) field.value = zone;
    // The server renders the labels of charts in UTC on the first visit. Without cookies they stay in UTC, and say so.
    if (zone !== "UTC" && document.cookie.includes("rabbitdelay_zone=") && !document.querySelector("main form[method=post]")) location.reload();
  }
  const format = new Intl.DateTimeFormat("en-GB", {
    timeZone: zone, year: "numeric", month: "2-digit", day: "2-digit",
    hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZoneName: "short",
  });
  const local = (at) => {
    const p = Object.fromEntries(format.formatToParts(at).map((x) => [x.type, x.value]));
    return `${p.year}-${p.month}-${p.day} ${p.hour}:${p.minute}:${p.second} ${p.timeZoneName}`;
  };
  const roughly = (ms) => {
    let s = Math.floor(ms / 1000);
    const d = Math.floor(s / 86400), h = Math.floor(s / 3600) % 24, m = Math.floor(s / 60) % 60;
    s %= 60;
    if (d >= 10) return `${d}d`;
    if (d) return h ? `${d}d${h}h` : `${d}d`;
    if (h) return m ? `${h}h${m}m` : `${h}h`;
    if (m) return s ? `${m}m${s}s` : `${m}m`;
    return `${s}s`;
  };
  const until = (at) => {
    const ms = at - Date.now();
    if (Math.abs(ms) < 1000) return text("now");
    return ms < 0 ? text("%s ago", roughly(-ms)) : text("in %s", roughly(ms));
  };
  const times = (within) => {
    for (const t of within.querySelectorAll("time[datetime]")) {
      const at = Date.parse(t.dateTime);
      if (!Number.isNaN(at)) t.textContent = local(at);
    }
  };
  const ages = () => {
    for (const e of document.querySelectorAll("[data-until]")) {
      const words = until(Date.parse(e.dataset.until));
      if (e.textContent !== words) e.textContent = words;
    }
  };
  times(document);
  ages();
  setInterval(ages, 1000);

  const tools = $("live-tools"), pause = $("pause"), live = $("live");

  // Updates parts of the page to the server's latest version. Only nodes that differ
  // are changed, so that the focus, the selection and open details are kept.
  const keyOf = (n) => n.dataset?.row === undefined ? n.dataset?.part || n.id || null : n.querySelector("a")?.getAttribute("href");
  const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
  const become = (old, now) => {
    if (old.isEqualNode(now)) return;
    if (old.nodeType !== Node.ELEMENT_NODE) { old.data = now.data; return; }
    for (const { name } of [...old.attributes]) if (!now.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    const until = old.dataset.until;
    for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    if (!until || until !== now.dataset.until) fill(old, now); // this script sets its text
  };
  const fill = (old, now) => {
    const kept = new Set([...now.childNodes].map(keyOf));
    for (const n of [...old.childNodes]) if (keyOf(n) && !kept.has(keyOf(n))) n.remove();
    let at = old.firstChild;
    for (const n of [...now.childNodes]) {
      // Remove the nodes between rows first, so that a row is only moved if it has overtaken another row.
      while (keyOf(n) && at && !keyOf(at)) { const next = at.nextSibling; at.remove(); at = next; }
      let same = at;
      if (keyOf(n)) while (same && !alike(same, n)) same = same.nextSibling;
      else if (same && !alike(same, n)) same = null;
      if (!same) { old.insertBefore(n, at); continue; }
      if (same === at) at = at.nextSibling;
      else old.insertBefore(same, at);
      become(same, n);
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  };
  const swap = (html) => {
    const fresh = document.adoptNode(new DOMParser().parseFromString(html, "text/html").documentElement);
    times(fresh);
    const rows = () => [...document.querySelectorAll("[data-row]")];
    const row = rows().indexOf(document.activeElement?.closest("[data-row]"));
    if (live) fill(live, fresh.querySelector("#live") || fresh.querySelector("body"));
    else for (const part of fresh.querySelectorAll("[data-part]")) become(document.querySelector(`[data-part="${part.dataset.part}"]`), part);
    ages();
    if (row >= 0 && document.activeElement === document.body) { // the focused row was removed
      const left = rows();
      left[Math.min(row, left.length - 1)]?.querySelector("a")?.focus({ preventScroll: true });
    }
    fromNow();
    picked();
  };
  const fromNow = () => {
    const asOf = document.querySelector("footer time");
    asOf.dateTime = asOf.title = new Date().toISOString();
    times(asOf.parentElement);
  };
  const refresh = async () => {
    try {
      const r = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (r.redirected || !r.ok) return location.reload();
      const html = await r.text();
      const fresh = new DOMParser().parseFromString(html, "text/html");
      if (fresh.querySelector("[data-part]")) return swap(html);
      times(fresh);
      const main = fresh.querySelector("main");
      if (main && !document.querySelector("main form[method=post], main :focus")) $("main").replaceWith(document.adoptNode(main));
      ages();
    } catch {
      state("lost", text("no connection"));
    }
  };

  // Live updates.
  let source = null, paused = false;
  const state = (name, words) => {
    if (!tools) return;
    tools.classList.toggle("lost", name === "lost");
    tools.classList.toggle("paused", name === "paused");
    $("live-state").textContent = words;
  };
  const verdict = () => $("verdict")?.textContent.trim() || "";
  const listen = () => {
    if (!live || source) return;
    source = new EventSource(live.dataset.live);
    source.addEventListener("parts", (e) => {
      state("live", text("live"));
      const before = verdict();
      swap(e.data);
      if (verdict() !== before) $("announce").textContent = verdict();
    });
    source.addEventListener("same", () => { state("live", text("live")); fromNow(); });
    source.addEventListener("problem", (e) => state("lost", e.data));
    source.onopen = () => state("live", text("live"));
    source.onerror = () => {
      state("lost", text("no connection, trying again"));
      if (source && source.readyState === EventSource.CLOSED) {
        source = null; // the response was not a stream, for example because the session has expired
        setTimeout(() => paused || document.hidden || refresh().then(listen), 5000);
      }
    };
  };
  const silence = () => { source?.close(); source = null; };
  const setPaused = (on) => {
    paused = on;
    pause.setAttribute("aria-pressed", String(on));
    pause.textContent = on ? text("Resume") : text("Pause");
    if (on) { silence(); state("paused", text("paused")); } else { state("live", text("live")); listen(); }
  };
  if (live && tools && window.EventSource) {
    tools.hidden = false;
    pause.addEventListener("click", () => setPaused(!paused));
    document.addEventListener("visibilitychange", () => { if (document.hidden) silence(); else if (!paused) listen(); });
    addEventListener("pagehide", silence);
    addEventListener("pageshow", () => paused || listen());
    listen();
  }
  const poll = () => {
    if (!document.querySelector("[data-poll]")) return;
    setTimeout(async () => { await refresh(); poll(); }, 1000);
  };
  poll();

  // Dark and light theme.
  const theme = $("theme");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => { if (theme) { theme.textContent = dark() ? text("Light") : text("Dark"); theme.value = dark() ? "light" : "dark"; } };
  const toggle = () => { root.dataset.theme = dark() ? "light" : "dark"; keep("theme", root.dataset.theme); label(); };
  label();
  $("theme-form")?.addEventListener("submit", (e) => { e.preventDefault(); toggle(); });

  // Omit empty fields from a filter's address, and submit each form only once.
  for (const form of document.querySelectorAll("form[method=get]")) {
    form.addEventListener("submit", () => {
      for (const field of form.elements) if (field.name && field.value === "") field.disabled = true;
    });
  }
  for (const form of document.querySelectorAll("main form[method=post]")) {
    form.addEventListener("submit", (e) => {
      if (form.dataset.sent) e.preventDefault();
      form.dataset.sent = "1";
    });
  }
  addEventListener("pageshow", () => {
    for (const field of document.querySelectorAll("form[method=get] :disabled")) field.disabled = false;
    for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
  });

  // Selected rows, which stay selected while live updates change the page.
  const picks = () => [...document.querySelectorAll("#selection td.pick input")];
  const picked = () => {
    const all = $("select-all"), count = $("selected");
    if (!all || !count) return;
    const boxes = picks(), n = boxes.filter((b) => b.checked).length;
    all.hidden = false;
    all.checked = n > 0 && n === boxes.length;
    all.indeterminate = n > 0 && n < boxes.length;
    const words = n ? ` ${n}` : "";
    if (count.textContent !== words) count.textContent = words;
    for (const b of document.querySelectorAll("#selection button")) b.disabled = !n;
  };
  document.addEventListener("change", (e) => {
    if (e.target.id === "select-all") for (const b of picks()) b.checked = e.target.checked;
    picked();
  });
  addEventListener("pageshow", picked);
  picked();

  // Keyboard shortcuts.
  const hint = document.querySelector(".hint-keys");
  if (hint) hint.hidden = false;
  const showKeys = () => $("keys").open || $("keys").showModal();
  $("show-keys")?.addEventListener("click", showKeys);
  const keysOn = $("keys-on");
  keysOn?.addEventListener("change", () => {
    root.dataset.keys = keysOn.checked ? "on" : "off";
    keep("keys", root.dataset.keys);
  });
  const step = (by) => {
    const links = [...document.querySelectorAll("[data-row]")].map((row) => row.querySelector("a")).filter((a) => a && a.offsetParent !== null);
    if (!links.length) return;
    const at = links.indexOf(document.activeElement);
    links[Math.min(links.length - 1, Math.max(0, at < 0 && by < 0 ? links.length - 1 : at + by))].focus();
  };
  const keys = {
    j: () => step(1),
    k: () => step(-1),
    "/": () => document.querySelector("[data-first]") ? document.querySelector("[data-first]").focus() : location.assign(new URL("tasks", document.querySelector(".brand").href)),
    f: () => $("find")?.focus(),
    x: () => document.activeElement?.closest("[data-row]")?.querySelector("td.pick input")?.click(),
    n: () => document.querySelector("a[rel=next]")?.click(),
    r: refresh,
    p: () => live && setPaused(!paused),
    t: toggle,
    "?": showKeys,
  };
  document.addEventListener("keydown", (e) => {
    if (root.dataset.keys === "off" || e.ctrlKey || e.metaKey || e.altKey || e.target.closest?.("input, textarea, select, dialog")) return;
    const nav = document.querySelectorAll(".top nav a")[Number(e.key) - 1];
    const act = keys[e.key] || (nav && (() => nav.click()));
    if (act) { e.preventDefault(); act(); }
  });
})();
