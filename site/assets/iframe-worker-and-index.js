// What the search needs before the theme's own script starts. (The name has "iframe-worker" in it, so that the theme's
// plugin for use without a network takes it for the script that it would fetch from elsewhere.)

// The index is larger than everything else on a page: it is fetched once somebody turns to the search.
const wanted = new Promise((resolve) => {
  const turn = (event) => (event.target.closest?.(".md-search, [for=__search]") || /^[sf/]$/.test(event.key ?? "")) && resolve();
  for (const kind of ["focusin", "pointerdown", "keydown"]) addEventListener(kind, turn, true);
  if (new URLSearchParams(location.search).has("q")) resolve();
});
const [open, send] = [XMLHttpRequest.prototype.open, XMLHttpRequest.prototype.send];
XMLHttpRequest.prototype.open = function (...words) {
  this.waits = String(words[1]).endsWith("search_index.json");
  return open.apply(this, words);
};
XMLHttpRequest.prototype.send = function (...words) {
  if (this.waits) void wanted.then(() => send.apply(this, words));
  else send.apply(this, words);
};

// From a folder (file://) a browser starts no worker: the search's one runs in a hidden frame instead,
// and knows by IFrameWorker that its own scripts lie beside it.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise((resolve) => {
        this.frame.onload = () => {
          const inside = this.frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          inside.importScripts = (...names) => Promise.all(names.map((name) => this.load(name)));
          resolve(this.load(address));
        };
      });
      document.body.append(this.frame);
    }
    load(address) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script");
        script.src = new URL(address, location.href).href;
        script.onload = resolve;
        script.onerror = reject;
        this.frame.contentDocument.body.append(script);
      });
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    set onmessage(listener) {
      this.addEventListener("message", listener);
    }
    terminate() {
      this.frame.remove();
    }
  };
}
