// Sphinx's scores of search results (`Scorer` in its searchtools.js), with guides before
// the pages that describe single names, and before those about the code itself.
var Scorer = {
  score: ([page, , , , score]) =>
    /^(api\/|notebooks\/|inside|extending|what-was|proofs)/.test(page)
      ? score - 5
      : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
