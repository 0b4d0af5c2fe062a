// In a worker, below Pyodide's own scripts: one interpreter. Its files come from the page, since a page that was opened
// from a disk can fetch nothing.
"use strict";

let files, kernel;
const PLACE = "https://pyodide.invalid/"; // no such host is ever asked: fetch is answered here

self.fetch = async (address) => {
  const name = String(address).split("/").pop();
  const type = name.endsWith(".wasm") ? "application/wasm" : "application/octet-stream";
  return new Response(files[name], { headers: { "Content-Type": type } });
};

function send(kind, content) {
  self.postMessage({ kind, content });
}

async function start({ given, about }) {
  files = given;
  send("status", "Starting Python …");
  const python = await loadPyodide({ indexURL: PLACE, lockFileURL: PLACE + "lock.json", env: { MPLBACKEND: "agg", HOME: "/home" } });
  send("status", "Starting NumPy …");
  await python.loadPackage(about.packages, { messageCallback: () => {}, errorCallback: (line) => send("status", line) });
  for (const name of about.sources) python.unpackArchive(files[name], "zip", { extractDir: "/clone" });
  files = {};
  send("status", "Starting the package …");
  python.runPython("import sys; sys.path.insert(0, '/clone')");
  kernel = python.pyimport(about.kernel).start(send);
}

self.onmessage = async ({ data }) => {
  try {
    if (data.given) await start(data);
    const ran = data.given ? true : kernel[data.method](...data.parameters);
    self.postMessage({ kind: "done", content: ran });
  } catch (error) {
    send("error", `${error}\n`);
    self.postMessage({ kind: "done", content: false });
  }
};
