package peers

import (
	"fmt"
	"html"
	"strings"
)

// Measures of the plot in pixels.
const (
	plotWidth  = 760
	labelWidth = 250
	barWidth   = 330 // of the longest one
	barHeight  = 12
	rowHeight  = 46
	headHeight = 54
)

// style has colours that can be read on light and on dark ground.
const style = `
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .small { font-size: 11px; fill: #59636e; }
  .axis { stroke: #d1d9e0; }
  .theirs { fill: #c4641c; } .ours { fill: #2f81d6; }
  .tail { opacity: .35; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; } .small { fill: #9198a1; } .axis { stroke: #3d444d; }
  }
`

// plot draws each row with two bars for each side: the median, and behind it the
// ninety-ninth percentile. Every row has a scale of its own: its longest bar.
func plot(rows []row) []byte {
	var b strings.Builder
	height := headHeight + rowHeight*len(rows)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n", plotWidth, height, plotWidth, height)
	fmt.Fprintf(&b, "<title>ADD and DEL: the reference dhcp daemon and dhcp-engine</title>\n<style>%s</style>\n", style)
	legend(&b)
	for i, r := range rows {
		y := headHeight + i*rowHeight
		theirs, ours := r.Figures[reference], r.Figures[engine]
		longest := max(theirs.Number, theirs.High, ours.Number, ours.High)
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", labelWidth-10, y+18, html.EscapeString(r.What))
		bar(&b, "theirs", y, theirs, longest)
		bar(&b, "ours", y+barHeight+3, ours, longest)
	}
	fmt.Fprintf(&b, `<line class="axis" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n</svg>\n", labelWidth, headHeight-6, labelWidth, height-8)
	return []byte(b.String())
}

func legend(b *strings.Builder) {
	fmt.Fprintf(b, `<rect class="theirs" x="%d" y="10" width="12" height="12"/><text x="%d" y="21">reference dhcp daemon</text>`+"\n", labelWidth, labelWidth+18)
	fmt.Fprintf(b, `<rect class="ours" x="%d" y="10" width="12" height="12"/><text x="%d" y="21">dhcp-engine</text>`+"\n", labelWidth+180, labelWidth+198)
	fmt.Fprintf(b, `<text class="small" x="%d" y="39">full: median, pale: 99th percentile; shorter is better; each pair has its own scale</text>`+"\n", labelWidth)
}

func bar(b *strings.Builder, side string, y int, f figure, longest float64) {
	scale := func(n float64) float64 { return n / max(longest, 1) * barWidth }
	fmt.Fprintf(b, `<rect class="%s tail" x="%d" y="%d" width="%.1f" height="%d"/>`, side, labelWidth, y, scale(f.High), barHeight)
	fmt.Fprintf(b, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d"/>`, side, labelWidth, y, scale(f.Number), barHeight)
	fmt.Fprintf(b, `<text class="small" x="%.1f" y="%d">%s</text>`+"\n", float64(labelWidth)+scale(max(f.High, f.Number))+6, y+barHeight-2, html.EscapeString(f.Text))
}
