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

async function start({ given, packages, sources }) {
  files = given;
  send("status", "Starting Python …");
  const python = await loadPyodide({ indexURL: PLACE, lockFileURL: PLACE + "lock.json", env: { MPLBACKEND: "agg", HOME: "/home" } });
  send("status", "Starting NumPy and matplotlib …");
  await python.loadPackage(packages, { messageCallback: () => {}, errorCallback: (line) => send("status", line) });
  python.unpackArchive(files[sources], "zip", { extractDir: "/clone" });
  files = {};
  python.runPython("import sys; sys.path.insert(0, '/clone')");
  const module = python.pyimport("linattn_ref.lecture.run.kernel");
  kernel = module.Kernel(send);
  module.install(kernel);
}

self.onmessage = async ({ data }) => {
  try {
    if (data.given) await start(data);
    const ran = data.given ? true : "code" in data ? kernel.run(data.code, data.title) : kernel.move(data.slider, data.to);
    self.postMessage({ kind: "done", content: ran });
  } catch (error) {
    send("error", `${error}\n`);
    self.postMessage({ kind: "done", content: false });
  }
};
