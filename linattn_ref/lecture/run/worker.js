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

async function start({ given, of, packages, archives }) {
  files = given;
  send("status", "Starting Python …");
  const python = await loadPyodide({ indexURL: PLACE, lockFileURL: PLACE + "lock.json", env: { MPLBACKEND: "agg", HOME: "/home" } });
  const chapter = packages.includes("matplotlib");
  send("status", `Starting ${chapter ? "NumPy and matplotlib" : "NumPy"} …`);
  await python.loadPackage(packages, { messageCallback: () => {}, errorCallback: (line) => send("status", line) });
  for (const name of archives) python.unpackArchive(files[name], "zip", { extractDir: "/clone" });
  files = {};
  python.runPython("import sys; sys.path.insert(0, '/clone')");
  if (of === "sentence") {
    kernel = python.pyimport("linattn_ref.lecture.run.sentence").start(send);
    return;
  }
  const module = python.pyimport("linattn_ref.lecture.run.kernel");
  kernel = module.Kernel(send);
  if (chapter) module.install(kernel);
}

async function done(data) {
  if (data.given) await start(data);
  if ("code" in data) return kernel.run(data.code, data.title);
  if ("page" in data) return kernel.check(data.page, JSON.stringify(data.rows));
  if ("slider" in data) return kernel.move(data.slider, data.to);
  if ("method" in data) return kernel[data.method](...data.parameters);
  return true;
}

self.onmessage = async ({ data }) => {
  try {
    self.postMessage({ kind: "done", content: await done(data) });
  } catch (error) {
    send("error", `${error}\n`);
    self.postMessage({ kind: "done", content: false });
  }
};
