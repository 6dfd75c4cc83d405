// Fills the page, and redraws it when the window's size or colors change.
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
// Hides links to sections that are hidden because they have no content.
for (const link of document.querySelectorAll('nav a')) link.hidden = $(link.hash.slice(1)).hidden;
const redraw = () => { tip(''); setInks(); redraws.forEach((draw) => draw()); };
addEventListener('resize', redraw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
// Printed pages have a white background, even if the screen's background is dark.
const onPaper = (on) => { document.documentElement.classList.toggle('paper', on); redraw(); };
addEventListener('beforeprint', () => onPaper(true));
addEventListener('afterprint', () => onPaper(false));
