// A kernel in a worker, and the files that it needs: ABOUT, of another script, lists them; each is a script that calls
// given(name, count, the count bytes of it, gzipped, as letters of 15 bits from U+3400 on).
"use strict";

const PLACE = new URL(".", document.currentScript.src);
const MB = 1e6;
const arrived = {};

function given(name, count, letters) {
  const bytes = new Uint8Array(count);
  let held = 0, bits = 0, at = 0;
  for (let i = 0; at < count; i++) {
    held = (held << 15) | (letters.charCodeAt(i) - 0x3400);
    for (bits += 15; bits >= 8 && at < count; at++) bytes[at] = held >> (bits -= 8);
    held &= (1 << bits) - 1;
  }
  arrived[name] = bytes;
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// --- Files ------------------------------------------------------------------------------------------------------------

async function file(name) {
  const script = element("script", { src: new URL(`${name}.js`, PLACE) });
  await new Promise((loaded, failed) => {
    script.onload = loaded;
    script.onerror = () => failed(new Error(`${script.src} cannot be loaded`));
    document.head.append(script);
  });
  script.remove();
  const bytes = arrived[name];
  delete arrived[name];
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

// --- The kernel -------------------------------------------------------------------------------------------------------

class Kernel {
  files = null; // kept, so that one that was stopped starts again without loading them
  worker = null;
  jobs = Promise.resolve(); // one after the other
  onstop = () => {};
  generation = 0; // jobs of a kernel that was stopped are not run by the next

  // Calls a method of the kernel when its turn comes; whether it ran to its end, or null if it was stopped.
  ask(method, parameters, receive) {
    const generation = this.generation;
    const job = this.jobs.then(async () => {
      if (generation !== this.generation) return null;
      try {
        if (!this.worker) await this.start(receive);
        return generation === this.generation ? await this.send({ method, parameters }, receive) : null;
      } catch (error) {
        this.stop();
        receive("error", `${error.message}\n`);
        return false;
      }
    });
    this.jobs = job;
    return job;
  }

  async start(receive) {
    const generation = this.generation;
    this.files ??= await this.load(receive);
    if (generation !== this.generation) return;
    const { [SCRIPTS[0]]: engine, [SCRIPTS[1]]: loader, ...rest } = this.files;
    const address = URL.createObjectURL(new Blob([engine, "\n", loader, "\n", ABOUT.worker]));
    this.worker = new Worker(address);
    await this.send({ given: rest, about: ABOUT }, receive);
    URL.revokeObjectURL(address);
  }

  async load(receive) {
    const files = {}, sizes = Object.values(ABOUT.files), all = sizes.reduce((a, b) => a + b, 0);
    let loaded = 0;
    for (const [name, size] of Object.entries(ABOUT.files)) {
      receive("status", `Loading, ${Math.round(loaded / MB)} of ${Math.round(all / MB)} MB …`);
      files[name] = await file(name);
      loaded += size;
    }
    return files;
  }

  send(message, receive) {
    return new Promise((done, failed) => {
      this.stopped = () => done(null);
      this.worker.onerror = (event) => failed(new Error(event.message));
      this.worker.onmessage = ({ data }) => (data.kind === "done" ? done(data.content) : receive(data.kind, data.content));
      this.worker.postMessage(message);
    });
  }

  stop() {
    this.generation += 1;
    this.worker?.terminate();
    this.worker = null;
    this.stopped?.();
    this.onstop();
  }
}

const SCRIPTS = ["pyodide.asm.js", "pyodide.js"];
const kernel = new Kernel();
