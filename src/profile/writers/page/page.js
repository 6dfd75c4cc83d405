// Fills the page, and draws it again when the window's size or colours change.
setInks();
listenToNodes();
listenToTime();
showHeadline();
showWhere();
showPasses();
showFixes();
showNodes();
showKernels();
loadTime();
showRanges();
showLoad();
showRoofline();
showMemory();
showGraph();
showEnvironment();
// Sections without content are hidden, and so are the links to them.
for (const link of document.querySelectorAll('nav a')) link.hidden = $(link.hash.slice(1)).hidden;
const redraw = () => { tip(''); setInks(); redraws.forEach((draw) => draw()); };
addEventListener('resize', redraw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
// For printing, the page has a white background, even if the screen's is dark.
const onPaper = (on) => { document.documentElement.classList.toggle('paper', on); redraw(); };
addEventListener('beforeprint', () => onPaper(true));
addEventListener('afterprint', () => onPaper(false));
