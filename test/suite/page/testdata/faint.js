(() => {
	const rgba = text => text.match(/[\d.]+/g).map(Number)
	const light = ([r, g, b]) => [.2126, .7152, .0722].reduce((sum, share, i) => {
		const c = [r, g, b][i] / 255
		return sum + share * (c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
	}, 0)
	const behind = e => {
		for (; e; e = e.parentElement) {
			const c = rgba(getComputedStyle(e).backgroundColor)
			if (c.length < 4 || c[3] === 1) return c
		}
	}
	return [...document.body.querySelectorAll('*')].filter(e => !e.hidden && ![...e.childNodes].every(n => n.nodeType !== Node.TEXT_NODE || !n.data.trim()))
		.filter(e => e.nodeName !== 'SCRIPT').map(e => {
			const [one, other] = [light(rgba(getComputedStyle(e).color)), light(behind(e))].sort((a, b) => b - a)
			return [(one + .05) / (other + .05), e.textContent]
		}).filter(([contrast]) => contrast < 4.5).map(([contrast, text]) => contrast.toFixed(1) + ' ' + text).join('\n')
})()
