// Ranks the results of the search: guides first, then functions, then decisions and records.
var Scorer = {
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
  score: ([page, title, , , score, , kind]) => {
    if (/decisions|benchmarks/.test(page)) return score / 4;
    // Whoever types ClassAwareSampler or load_run wants just that, but tune is a word, too.
    if (kind === "object") return /[A-Z_][^.]*$/.test(title) ? 4 * score : score;
    if (/^(tutorials|how-to|explanation|reference\/losses)\/|^reference\/(runs|batches|conventions)$/.test(page)) return 4 * score;
    return score;
  },
};
