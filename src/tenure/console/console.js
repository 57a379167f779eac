"use strict";
// Shows the page anew after each look at the store, while the page is visible. A hidden page keeps no connection.
const byId = (id) => document.getElementById(id);
const say = (text) => { if (byId("live").textContent !== text) byId("live").textContent = text; };
const mark = (element) => element && (element.id || element.getAttribute("href"));
let stream = null, busy = false;

function inForm() {
  const open = document.querySelector("main details[open], main form:focus-within");
  if (open) say("The page waits with changes while a form is open.");
  return open;
}

async function refresh() {
  if (busy || inForm()) return;
  busy = true;
  try {
    const reply = await fetch(location.href, { headers: { "tenure-part": "main" } }); // without style and script
    if (reply.status === 401 || reply.status === 403) return location.reload();
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    if (inForm()) return; // it was opened while the reply was under way
    const focused = mark(document.activeElement);
    for (const id of ["main", "status"]) byId(id).replaceWith(page.getElementById(id));
    const again = focused && [...document.querySelectorAll("main, main [id], main [href]")].find((each) => mark(each) === focused);
    if (again) again.focus({ preventScroll: true });
    say("");
  } catch {
    say("The console does not answer. The page goes on when it does.");
  } finally {
    busy = false;
  }
}

function watch() {
  if (stream) stream.close();
  stream = null;
  if (document.hidden) return;
  stream = new EventSource(document.body.dataset.events);
  stream.onmessage = refresh;
  stream.onerror = () => {
    say("The console does not answer. The page goes on when it does.");
    if (stream && stream.readyState === EventSource.CLOSED) setTimeout(watch, 5000);
  };
}

document.addEventListener("visibilitychange", watch);
addEventListener("pagehide", () => stream && stream.close());
addEventListener("pageshow", (event) => { if (event.persisted) watch(); });
watch();
