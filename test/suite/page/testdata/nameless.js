[...document.querySelectorAll('[role=img],[role=meter],section')].filter(e =>
	!e.getAttribute('aria-label') && !document.getElementById(e.getAttribute('aria-labelledby'))?.textContent).map(e => e.outerHTML).join('\n')
