"""ropekit-report: merges results of any number of machines into one page and a Markdown summary."""

import argparse
import sys
from pathlib import Path

from ropekit_bench import results
from ropekit_bench.report import documents, page
from ropekit_bench.report.model import machines


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="ropekit-report", description=__doc__)
    parser.add_argument(
        "results", nargs="+", help="files of `ropekit bench --output` and ropekit-peers, or .jsonl"
    )
    parser.add_argument("--runs", metavar="FILE.jsonl", help="write what reports show of the files into one")
    parser.add_argument("--html", help="write the page to a file")
    parser.add_argument("--markdown", help="write the summary to a file [standard output]")
    options = parser.parse_args(arguments)
    try:
        runs = [run for path in options.results for run in results.read(path)]
        if not machines(runs):
            raise results.ResultsError("no file holds results of a device")
        if options.runs:
            results.write_runs(runs, options.runs)
        if options.html:
            Path(options.html).write_text(page.render(runs), encoding="utf-8")
        text = documents.summary(runs)
        if options.markdown:
            Path(options.markdown).write_text(text, encoding="utf-8")
        elif not options.html and not options.runs:
            print(text)
    except (results.ResultsError, OSError) as error:
        print(f"ropekit-report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
