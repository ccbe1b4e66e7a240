[...document.body.querySelectorAll('*')].filter(e => {
	const right = (e.closest('.card, section > table') ?? document.documentElement).getBoundingClientRect().right
	return e.getBoundingClientRect().right > right + 1
})
.map(e => e.nodeName + '.' + e.className.toString()).join(' ')
