// Fills the page, and draws it anew where the window or the colours change.
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
// Sections without content are hidden, and nothing leads to them.
for (const link of document.querySelectorAll('nav a')) link.hidden = $(link.hash.slice(1)).hidden;
const redraw = () => { tip(''); setInks(); redraws.forEach((draw) => draw()); };
addEventListener('resize', redraw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
// Paper is white, whatever the screen is.
const onPaper = (on) => { document.documentElement.classList.toggle('paper', on); redraw(); };
addEventListener('beforeprint', () => onPaper(true));
addEventListener('afterprint', () => onPaper(false));
